"""Golden files: what is in them, what of them is put on another machine, and how machines are compared."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import bios_files
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_compare import (
    compare,
    differences,
    majority,
    report,
    same,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_files import (
    read_document,
    write_document,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_golden import (
    Golden,
    GoldenFileError,
    particular,
    read_golden,
    same_registry,
    select,
    snapshot,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_registry import (
    Attribute,
    Condition,
    Dependency,
    Option,
    Registry,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_settings import BiosState, plan

FIXTURES = Path(__file__).parents[1] / "fixtures" / "redfish"
CAPTURED = Path(__file__).parents[2] / "lab" / "bmc" / "data" / "captured"


def attributes_of(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text())
    values: dict[str, Any] = document.get("Attributes", document)
    return values


HPE = attributes_of(CAPTURED / "hpe_ilo_bios.json")
DELL = attributes_of(FIXTURES / "bmclib_dell_r6515_bios.json")


def test_no_password_of_a_captured_dell_is_in_its_snapshot() -> None:
    document = snapshot(BiosState(DELL), {"Model": "PowerEdge R6515"}, "node1", "2026-01-01T00:00:00Z")
    assert set(document["left_out"]) == {
        "SHA256SystemPassword",
        "SHA256SystemPasswordSalt",
        "SHA256SetupPassword",
        "SHA256SetupPasswordSalt",
        "SysPassword",
        "SetupPassword",
    }
    assert set(DELL) - set(document["attributes"]) == set(document["left_out"])
    assert document["attributes"]["PasswordStatus"] == "Unlocked"
    typed = Registry("R", {"Key": Attribute("Key", "Password")})
    assert snapshot(BiosState({"Key": "hush"}, {}, typed), {}, "", "")["attributes"] == {}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("SerialNumber", "one machine"),
        ("SystemServiceTag", "one machine"),
        ("ServerAssetTag", "one machine"),
        ("AssetTag", "one machine"),
        ("ServerName", "one machine"),
        ("Ipv4Address", "one machine"),
        ("SetBootOrderEn", "one machine"),
        ("UrlBootFile2", "one machine"),
        ("EmbNic1MacAddr", "one machine"),
        ("SystemUuid", "one machine"),
        ("RestoreManufacturingDefaults", "action"),
        ("SataSecureErase", "action"),
        ("Tpm2Operation", "action"),
        ("SetupPassword", "password"),
        # Settings, though their names look like it.
        ("BootOrderPolicy", ""),
        ("BootSeqRetry", ""),
        ("AssetTagProtection", ""),
        ("ProcessorUuidControl", ""),
        ("PasswordStatus", ""),
        ("IntelPchApm", ""),
        ("MicrocodeUpdate", ""),
        ("BootMode", ""),
        ("ProcTurbo", ""),
    ],
)
def test_what_is_particular_to_one_machine_is_known_by_its_name(name: str, reason: str) -> None:
    assert (reason in particular(name)) if reason else particular(name) == ""


def test_most_of_a_captured_machine_is_settings() -> None:
    left = [name for name in HPE if particular(name)]
    assert {"SerialNumber", "ServerName", "ServerAssetTag", "Ipv4Address", "EraseUserDefaults"} <= set(left)
    assert len(left) < 60
    assert not [name for name in left if "Prefetch" in name or "Power" in name or "Proc" in name]


PROFILE = Attribute("Profile", "Enumeration", options=(Option("Fast", "Fast"), Option("Custom", "Custom")))
TURBO = Attribute("Turbo", "Enumeration", options=(Option("On", "On"), Option("Off", "Off")))
LOCK = Dependency((Condition("Profile", "CurrentValue", "NEQ", "Custom"),), "Turbo", "ReadOnly", True)


def machine(**applied: Any) -> BiosState:
    described = {
        "Profile": PROFILE,
        "Turbo": TURBO,
        "Info": Attribute("Info", "String", read_only=True),
        "Ghost": Attribute("Ghost", "String", hidden=True),
        "Grey": Attribute("Grey", "String", gray_out=True),
        "SerialNumber": Attribute("SerialNumber", "String"),
    }
    values = {"Profile": "Fast", "Turbo": "Off", "Info": "a", "Ghost": "a", "Grey": "a", "SerialNumber": "1", **applied}
    return BiosState(values, {}, Registry("BiosRegistryX.v1_2_0", described, [LOCK]))


def golden(**attributes: Any) -> Golden:
    return read_golden({"attributes": attributes}, "golden.json")


def test_what_cannot_be_put_on_a_machine_is_left_out_and_named_where_it_differs() -> None:
    wanted = golden(Info="b", Ghost="b", Grey="b", SerialNumber="2", Else=1, Extra=None, Profile="Custom", Turbo="On")
    found = select(wanted, machine(Undescribed="x"), "")
    assert found.settings == {"Profile": "Custom", "Turbo": "On"}
    assert found.left_out == {
        "Info": "read-only in the registry",
        "Ghost": "hidden in the registry",
        "Grey": "inactive in the registry",
        "SerialNumber": "it belongs to one machine",
        "Else": "this machine does not have it",
    }
    # The profile of the file frees the setting in the same request.
    assert plan(machine(), found.settings).write == {"Profile": "Custom", "Turbo": "On"}
    assert select(golden(Info="a", SerialNumber="1"), machine(), "").left_out == {}


def test_what_a_profile_of_the_file_locks_comes_with_the_profile() -> None:
    found = select(golden(Profile="Fast", Turbo="On"), machine(Profile="Custom"), "")
    assert found.settings == {"Profile": "Fast"}
    assert found.left_out == {"Turbo": "locked while Profile is not Custom, which the golden file asks for"}
    # Without the profile in the file, the lock is the engine's business: refused, or unlocked where that is allowed.
    alone = select(golden(Turbo="On"), machine(), "")
    assert (alone.settings, alone.left_out) == ({"Turbo": "On"}, {})
    assert plan(machine(), alone.settings, unlock=True).write == {"Profile": "Custom", "Turbo": "On"}


def test_another_model_or_registry_is_refused_unless_allowed() -> None:
    other = read_golden({"model": "A", "registry": "BiosOther.v1_0_0", "attributes": {"Turbo": "Up"}}, "g.json")
    with pytest.raises(GoldenFileError, match=r"of the model A, this machine is a B and of the registry BiosOther"):
        select(other, machine(), "B")
    allowed = select(other, machine(), "B", other_model=True)
    assert allowed.settings == {}
    assert 'Turbo has no value "Up"' in allowed.left_out["Turbo"]
    newer = read_golden({"model": "b ", "registry": "BiosRegistryX.v1_3_0", "attributes": {"Turbo": "Off"}}, "g.json")
    assert "another BIOS version" in select(newer, machine(), "B").warnings[0]


def test_registry_ids_differ_by_version_only_or_in_kind() -> None:
    assert same_registry("BiosAttributeRegistryU58.v1_2_44", "biosattributeregistryu58.v1_3_0")
    assert not same_registry("BiosAttributeRegistryU58.v1_2_44", "BiosAttributeRegistryU30.v1_2_44")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "expected a mapping with attributes, found list"),
        ({"attributes": {}}, "expected attributes with at least one"),
        ({"attribute": {"A": 1}}, 'did you mean "attributes"'),
        ({"attributes": {"A": [1]}}, "must map names to single values"),
        ({"attributes": {True: "x"}}, "must map names to single values, found True"),
        ({"attributes": {"A": 1}, "registry": 1.2}, "registry must be a text (in quotes), found 1.2"),
        ({"attributes": {"A": 1}, "format": "plumbline-bios-9"}, "expected plumbline-bios-1"),
        ({"attributes": {"A": 1}, "read_only": "A"}, "read_only must be a list"),
    ],
)
def test_a_malformed_file_is_refused_with_one_sentence(data: Any, words: str) -> None:
    with pytest.raises(GoldenFileError) as caught:
        read_golden(data, "golden.yml")
    assert words in str(caught.value)
    assert str(caught.value).startswith("golden.yml")


def test_files_are_written_whole_and_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "one.json"
    write_document(str(path), {"attributes": {"A": "ü"}})
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_document(str(path)) == {"attributes": {"A": "ü"}}
    assert [item.name for item in path.parent.iterdir()] == ["one.json"]
    path.write_text("attributes:\n  A: 'yes'\n")
    assert read_document(str(path)) == {"attributes": {"A": "yes"}}
    path.write_text("a: [")
    with pytest.raises(GoldenFileError, match="neither JSON nor YAML"):
        read_document(str(path))
    with pytest.raises(GoldenFileError, match="cannot be written on the controller"):
        write_document(str(path / "below"), {})


def test_a_disk_that_is_full_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one.json"
    write_document(str(path), {"attributes": {"A": "old"}})

    def full(*_arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bios_files, "as_text", full)
    with pytest.raises(GoldenFileError, match=r"\(No space left on device\): make room there"):
        write_document(str(path), {"attributes": {"A": "new"}})
    assert [item.name for item in tmp_path.iterdir()] == ["one.json"]
    assert read_document(str(path)) == {"attributes": {"A": "old"}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"attributes": {"A": "x", "A": "y"}}', 'has the key "A" twice: keep one'),
        ("attributes:\n  A: x\n  B: y\n  A: z\n", 'has the key "A" twice (line 4): keep one'),
        (
            '{\n  "attributes": {\n    "A": "x"',
            "is not whole JSON, as a file that was cut (Expecting ',' delimiter: line 3",
        ),
        ('{"a":' * 20_000, "is nested too deep"),
        ("attributes: !!python/object/apply:os.system [exit]", "could not determine a constructor"),
        ("attributes: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n", "could not determine a constructor"),
        (b"\xff\xfe", "is no text in UTF-8"),
    ],
)
def test_a_file_that_was_cut_or_says_a_thing_twice_is_refused(tmp_path: Path, text: str | bytes, words: str) -> None:
    path = tmp_path / "golden.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(GoldenFileError) as caught:
        read_document(str(path))
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"The golden file {path} ")
    assert "\n" not in str(caught.value)


def document(host: str, **attributes: Any) -> Golden:
    return Golden(attributes, origin=host, host=host, display_names={"Turbo": "Turbo Mode"}, read_only=("Info",))


def test_values_are_compared_as_a_person_reads_them() -> None:
    assert same(24, "24")
    assert same(True, "true")
    assert not same(True, 1)
    assert not same(None, "")
    assert same("a ", "a")


def test_only_differences_of_settings_are_told() -> None:
    one = document("one", Turbo="On", Scrub=24, SerialNumber="1", Info="a", Only="x")
    two = document("two", Turbo="Off", Scrub="24", SerialNumber="2", Info="b")
    found, information = differences(one, two)
    assert [(d.attribute, d.display, d.reference, d.found) for d in found] == [
        ("Only", "", "x", None),
        ("Turbo", "Turbo Mode", "On", "Off"),
    ]
    assert information == ["Info"]
    assert differences(one, two, ["Only", "Tur*"])[0] == []


def test_200_machines_are_grouped_by_equal_differences() -> None:
    fleet = {f"node{n:03}": document(f"node{n:03}", Turbo="On", Scrub=24, SerialNumber=str(n)) for n in range(200)}
    for n in (7, 70, 170):
        fleet[f"node{n:03}"] = document(f"node{n:03}", Turbo="Off", Scrub=24, SerialNumber=str(n))
    fleet["node042"] = document("node042", Turbo="Off", Scrub=12, SerialNumber="42")
    reference, undecided = majority(fleet)
    assert (reference.attributes["Turbo"], reference.attributes["Scrub"], undecided) == ("On", 24, [])
    found = compare(fleet, reference)
    assert [(len(group.hosts), len(group.differences)) for group in found.groups] == [(196, 0), (3, 1), (1, 2)]
    assert found.differing == ["node007", "node042", "node070", "node170"]
    assert found.ignored == ["SerialNumber"]
    lines = report(found)
    assert lines[0] == "196 of 200 machines have the same BIOS settings as the majority of 200 machines."
    assert "3 machines (node007, node070, node170): 1 difference" in lines
    assert "  Turbo      Turbo Mode    On         Off" in lines
    assert len(lines) < 20


def test_a_tie_is_told() -> None:
    pairs = {f"n{n}": document(f"n{n}", Turbo="On" if n < 2 else "Off") for n in range(4)}
    reference, undecided = majority(pairs)
    assert undecided == ["Turbo"]
    assert reference.attributes["Turbo"] == "On"
    lines = report(compare(pairs, reference, undecided=undecided))
    assert "No value has a majority, that of the first machine was taken: Turbo" in lines


def test_an_attribute_that_most_machines_lack_is_absent_from_the_majority() -> None:
    fleet = {"a": document("a", Odd="x"), "b": document("b", Turbo="On"), "c": document("c", Turbo="On")}
    reference, _ = majority(fleet)
    assert "Odd" not in reference.attributes
    found = compare(fleet, reference)
    assert [(d.attribute, d.reference, d.found) for d in found.groups[1].differences] == [
        ("Odd", None, "x"),
        ("Turbo", "On", None),
    ]
    assert any("(none)" in line for line in report(found))
