"""What nvidia-smi and the kernel log say, read from real machines and from rubbish."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvidia_smi import (
    SmiError,
    normalise_address,
    parse_smi,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvidia_xid import find_xids
from hypothesis import given, settings
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nvidia"
H200 = (FIXTURES / "h200_580_nvidia-smi-q-x_v13.xml").read_text()
A100 = (FIXTURES / "telegraf_nvidia-smi_a100-sxm4-v12.xml").read_text()
A10G = (FIXTURES / "telegraf_nvidia-smi_a10g.xml").read_text()
RTX = (FIXTURES / "telegraf_nvidia-smi_rtx-4000-sff-ada-v13.xml").read_text()
OLD = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v10.dtd">
<nvidia_smi_log>
  <driver_version>418.56</driver_version><cuda_version>10.1</cuda_version><attached_gpus>1</attached_gpus>
  <gpu id="00000001:3B:00.0">
    <product_name>Tesla V100</product_name><persistence_mode>Enabled</persistence_mode>
    <ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Disabled</pending_ecc></ecc_mode>
    <ecc_errors><volatile>
      <single_bit><device_memory>3</device_memory><total>5</total></single_bit>
      <double_bit><device_memory>1</device_memory><total>2</total></double_bit>
    </volatile></ecc_errors>
    <retired_pages><pending_retirement>Yes</pending_retirement></retired_pages>
    <power_readings><power_limit>300.00 W</power_limit></power_readings>
  </gpu>
</nvidia_smi_log>
"""


def test_an_h200_of_schema_13() -> None:
    found = parse_smi(H200)
    assert (found["schema"], found["driver_version"], found["cuda_version"]) == (13, "580.159.04", "13.0")
    assert found["warnings"] == []
    (gpu,) = found["gpus"]
    assert gpu["address"] == "0000:00:06.0"
    assert (gpu["ecc_mode"], gpu["ecc_uncorrected"], gpu["ecc_corrected"], gpu["repairs"]) == ("Enabled", 0, 0, [])
    assert (gpu["recovery_action"], gpu["persistence_mode"]) == ("None", "Enabled")
    assert (gpu["link_generation"], gpu["link_width"], gpu["link_width_maximum"]) == (5, 16, 16)
    assert gpu["memory_total_bytes"] == 143771 * 1024 * 1024
    assert gpu["power_limit_watts"] == 700.0


def test_an_a100_of_schema_12_keeps_its_own_errors_apart_from_those_of_its_slices() -> None:
    text = A100.replace("<sram_uncorrectable>0</sram_uncorrectable>", "<sram_uncorrectable>7</sram_uncorrectable>", 1)
    (gpu,) = parse_smi(text)["gpus"]
    assert gpu["ecc_uncorrected"] == 0
    assert gpu["mig_mode"] == "Enabled"
    assert gpu["repairs"] is None


def test_an_a10g_of_schema_11_with_a_narrow_idle_link() -> None:
    (gpu,) = parse_smi(A10G)["gpus"]
    assert (gpu["link_generation"], gpu["link_generation_maximum"], gpu["link_width"]) == (1, 4, 8)
    assert gpu["recovery_action"] is None
    assert gpu["repairs"] == []


def test_a_workstation_card_without_ecc() -> None:
    (gpu,) = parse_smi(RTX)["gpus"]
    assert gpu["ecc_uncorrected"] is None
    assert gpu["ecc_mode"] == "Disabled"


def test_schema_10_with_bits_totals_and_a_page_to_retire() -> None:
    (gpu,) = parse_smi(OLD)["gpus"]
    assert gpu["address"] == "0001:3b:00.0"
    assert (gpu["ecc_uncorrected"], gpu["ecc_corrected"]) == (2, 5)
    assert gpu["repairs"] == ["page retirement pending"]
    assert (gpu["ecc_mode"], gpu["ecc_mode_pending"]) == ("Enabled", "Disabled")
    assert gpu["power_limit_watts"] == 300.0


def test_errors_and_repairs_of_schema_13_are_found() -> None:
    text = H200.replace("<sram_uncorrectable_secded>0", "<sram_uncorrectable_secded>3", 1)
    text = text.replace("<dram_uncorrectable>0", "<dram_uncorrectable>4", 1)
    text = text.replace("<remapped_row_pending>No", "<remapped_row_pending>Yes")
    text = text.replace("<unrepairable_memory>No", "<unrepairable_memory>Yes")
    (gpu,) = parse_smi(text)["gpus"]
    assert gpu["ecc_uncorrected"] == 7
    assert gpu["ecc_corrected"] == 0
    assert gpu["ecc_uncorrected_sram"] == 3
    assert gpu["repairs"] == ["row remap pending"]
    assert gpu["failures"] == ["memory that cannot be repaired"]


def test_counters_of_a_gpus_life_are_kept_apart_from_those_since_the_driver_was_loaded() -> None:
    head, aggregate, tail = H200.partition("<aggregate>")
    tail = tail.replace("<dram_uncorrectable>0", "<dram_uncorrectable>9", 1).replace(
        "<dram_correctable>0", "<dram_correctable>8", 1
    )
    (gpu,) = parse_smi(head + aggregate + tail)["gpus"]
    assert (gpu["ecc_uncorrected"], gpu["ecc_corrected"]) == (0, 0)
    assert (gpu["ecc_uncorrected_lifetime"], gpu["ecc_corrected_lifetime"]) == (9, 8)


def test_spare_rows_and_retired_pages() -> None:
    (gpu,) = parse_smi(A10G)["gpus"]
    assert gpu["remap_banks"] == {"max": 192, "high": 0, "partial": 0, "low": 0, "none": 0}
    assert (gpu["remapped_rows_uncorrectable"], gpu["remapped_rows_correctable"]) == (0, 0)
    assert gpu["retired_pages"] is None
    assert gpu["failures"] == []
    (gpu,) = parse_smi(A100)["gpus"]  # cut into slices it tells nothing of rows
    assert (gpu["remap_banks"], gpu["remapped_rows_uncorrectable"], gpu["failures"]) == (None, None, None)
    pages = "<double_bit_retirement><retired_count>{}</retired_count></double_bit_retirement>"
    old = OLD.replace("<pending_retirement>", pages.format(3) + "<pending_retirement>")
    assert parse_smi(old)["gpus"][0]["retired_pages"] == 3
    assert parse_smi(OLD)["gpus"][0]["failures"] is None


def test_what_is_printed_around_the_answer_is_a_warning() -> None:
    found = parse_smi(H200 + "WARNING: infoROM is corrupted at gpu 0000:00:06.0\n")
    assert found["warnings"] == ["WARNING: infoROM is corrupted at gpu 0000:00:06.0"]
    assert len(found["gpus"]) == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no XML but 'nothing'"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "couldn't communicate"),
        ("</nvidia_smi_log><nvidia_smi_log>", "no XML"),
        ("<nvidia_smi_log><gpu></nvidia_smi_log>", "cannot be read"),
        (H200[: len(H200) // 2], "no XML"),
    ],
)
def test_rubbish_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(SmiError, match=re.escape(sentence)):
        parse_smi(text)


def test_an_endless_answer_is_refused() -> None:
    with pytest.raises(SmiError, match="more than any machine"):
        parse_smi("x" * (33 * 1024 * 1024))


def test_entities_are_not_expanded() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY b "bbbb">]><nvidia_smi_log><driver_version>&b;</driver_version></nvidia_smi_log>'
    with pytest.raises(SmiError, match="cannot be read"):
        parse_smi(bomb)


def outcome(text: str) -> str:
    """The sentence of the refusal, or nothing; any other exception fails the test."""
    try:
        found = parse_smi(text)
    except SmiError as error:
        return str(error)
    assert all(gpu["ecc_uncorrected"] is None or gpu["ecc_uncorrected"] >= 0 for gpu in found["gpus"])
    return ""


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(H200)), st.integers(0, 400), st.text(max_size=40))
def test_a_damaged_answer_never_raises_anything_else(start: int, length: int, put: str) -> None:
    assert "\n" not in outcome(H200[:start] + put + H200[start + length :])


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_inside_the_fields_is_survived(put: str) -> None:
    escaped = re.sub(r"[^\x20-\ud7ff\ue000-\ufffd]", "?", put).replace("&", "&amp;").replace("<", "&lt;")
    assert "\n" not in outcome(re.sub(r">[^<>]+<", lambda match: f">{escaped}<", H200))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1B:00.0", "0000:1b:00.0"),
        ("00000008:00:00.0", "0008:00:00.0"),
        ("00010000:00:00.0", "10000:00:00.0"),
        ("N/A", "n/a"),
    ],
)
def test_addresses_are_as_linux_writes_them(text: str, address: str) -> None:
    assert normalise_address(text) == address


def test_xids_of_a_real_log_are_counted_by_gpu() -> None:
    (found,) = find_xids((FIXTURES / "gpud_dmesg_xid119.log").read_text())
    assert (found["address"], found["code"], found["count"]) == ("0000:9b:00.0", 119, 5)
    assert not found["application"]
    assert "GSP" in found["meaning"]
    assert found["first"].startswith("[Sun Feb 23 16:24:18 2025] NVRM: Xid")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Nov 22 host kernel: [ 966.5] NVRM: Xid (0000:01:00): 31, Ch 0000000b", [("0000:01:00.0", 31, True)]),
        ("NVRM: Xid (PCI:0000:10:00.0): 79, GPU has fallen off the bus.", [("0000:10:00.0", 79, False)]),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30", [("0000:c1:00.0", 20034, False)]),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20012, Non-fatal, Link 30", []),
        ("NVRM: GPU at PCI:0000:9b:00: GPU-b07aa427", []),
        ("NVRM: Xid (PCI:zz:9b:00): 119", []),
        ("", []),
    ],
)
def test_each_form_of_a_line(line: str, expected: list[tuple[str, int, bool]]) -> None:
    assert [(x["address"], x["code"], x["application"]) for x in find_xids(line)] == expected


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_log_is_survived(log: str) -> None:
    assert isinstance(find_xids("NVRM: Xid (PCI:0000:9b:00): 119, x\n" + log), list)


def xids(*codes: int, gpu: str = "0000:9b:00") -> str:
    return "\n".join(f"[1.0] NVRM: Xid (PCI:{gpu}): {code}, pid=1, name=x" for code in codes)


@pytest.mark.parametrize(
    ("log", "recovered"),
    [
        (xids(63), {63}),
        (xids(92, 94, 121, 160), {92, 94, 121, 160}),
        # An uncorrected error that was contained, as a GPU with containment tells it.
        (xids(48, 171, 63, 94), {48, 171, 63, 94}),
        # Without a word of containment, or with one that is worse, it is what it says.
        (xids(48), set()),
        (xids(48, 63), {63}),
        (xids(48, 94, 95), {94}),
        (xids(48, 64, 94), {94}),
        # Of another GPU.
        (xids(48) + "\n" + xids(94, gpu="0000:1b:00"), {94}),
        (xids(64, 95, 140, 79, 119), set()),
    ],
)
def test_what_a_gpu_gets_over_is_told_apart(log: str, recovered: set[int]) -> None:
    assert {xid["code"] for xid in find_xids(log) if xid["recovered"]} == recovered


def test_a_wish_for_recovery_that_is_taken_back_is_none() -> None:
    line = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from {}"
    assert find_xids(line.format("0x1 (GPU Reset Required) to 0x0 (None)")) == []
    (xid,) = find_xids(line.format("0x0 (None) to 0x2 (Node Reboot Required)"))
    assert (xid["code"], xid["recovered"]) == (154, False)
