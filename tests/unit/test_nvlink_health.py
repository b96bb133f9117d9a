"""NVLinks as nvidia-smi tells them: real answers, and the cases where there is nothing to judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvidia_smi import parse_smi
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvlink import NvLinks, parse_status
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvlink_health import (
    ask_links,
    link_measurements,
    parse_errors,
)

NVIDIA = Path(__file__).parents[1] / "fixtures/nvidia"
STATUS, ERRORS = ((NVIDIA / f"h200x2_580_nvlink_{kind}.txt").read_text() for kind in "se")
SMI = parse_smi((NVIDIA / "h200_580_nvidia-smi-q-x_v13.xml").read_text())


def measured(
    status: str = "", errors: str = "", switches: tuple[str, ...] = (), **gpu: Any
) -> dict[str, dict[str, Any]]:
    smi = {**SMI, "gpus": [{**SMI["gpus"][0], **gpu}]}
    found = link_measurements(smi, {"status": status, "errors": errors}, list(switches), 7200.0)
    return {f"{one['name']} {one['scope']}": one for one in found}


def test_two_h200_with_all_their_links() -> None:
    first, second = parse_status(STATUS)
    assert (len(first["links"]), set(first["links"].values())) == (18, {26.562e9})
    assert second["index"] == 1
    assert [gpu["counted"] for gpu in parse_errors(ERRORS)] == [True, True]
    assert [gpu["faults"] for gpu in parse_errors(ERRORS)] == [{}, {}]
    found = measured(STATUS, ERRORS, fabric_state="Completed", fabric_status="Success")
    # The first GPU of both captures is the same by its (replaced) UUID, the other one is known by its number.
    assert found["gpu_nvlink 0000:00:06.0"]["value"] == found["gpu_nvlink GPU 1"]["limit"] == 18
    assert found["gpu_nvlink_errors GPU 1"]["value"] == 0
    assert (
        found["gpu_fabric 0000:00:06.0"]["value"]
        == found["gpu_fabric 0000:00:06.0"]["expected"]
        == "Completed, Success"
    )


def test_what_links_carry_and_which_are_down_is_read_once_for_limits_and_health() -> None:
    query = f"0, 00000000:{SMI['gpus'][0]['address'][5:]}\n"
    status = STATUS.replace("Link 3: 26.562 GB/s", "Link 3: <inactive>", 1)
    links = NvLinks(status, "", query)
    assert links.gpu("0000:00:06.0") == (pytest.approx(17 * 26.562e9), "17 NVLinks x 26.562 GB/s (nvidia-smi)")
    assert links.inactive("0000:00:06.0") == 1
    found = measured(status, switches=("0000:05:00.0",))["gpu_nvlink 0000:00:06.0"]
    assert (found["value"], found["limit"]) == (17, 18)
    assert "link 3 is inactive" in found["cause"]


@pytest.mark.parametrize("status", ["", "NVML: no", (NVIDIA / "aznhc_bad_nvlink_status.txt").read_text()])
def test_a_node_that_uses_no_nvlink_is_skipped(status: str) -> None:
    assert "no NVLink is in use" in measured(status)["gpu_nvlink node"]["skipped"]


def test_gpus_in_slices_use_no_nvlink() -> None:
    uuid = str(SMI["gpus"][0]["uuid"])
    status = f"GPU 0: NVIDIA H200 (UUID: {uuid})\n\t Link 0: <inactive>\n"
    assert "MIG" in measured(status, switches=("0000:05:00.0",), mig_mode="Enabled")["gpu_nvlink node"]["skipped"]
    assert measured(status, switches=("0000:05:00.0",))[f"gpu_nvlink {SMI['gpus'][0]['address']}"]["value"] == 0


def test_counters_of_newer_drivers_that_are_no_faults() -> None:
    text = (
        "GPU 0: x (UUID: y)\n\t Link 0: Tx packets: 991\n\t Link 0: Malformed packet Errors: 0\n\t Link 0: FEC Errors - 0: 88\n"
        "\t Link 0: Symbol Errors: 4\n\t Link 0: Link recovery failed events: 2\n\t Link 0: Link recovery successful events: 7\n"
    )
    (gpu,) = parse_errors(text)
    assert gpu["faults"] == {"link 0 Link recovery failed events": 2}


def test_replays_are_taken_over_the_time_since_the_boot() -> None:
    assert measured(pcie_replays=30)["gpu_pcie_replays 0000:00:06.0"]["value"] == 15.0
    assert not [name for name in measured(pcie_replays=None) if "replays" in name]


def test_a_driver_that_does_not_answer_is_asked_no_further() -> None:
    assert link_measurements(None, {"status": STATUS, "errors": ERRORS}, [], 1.0) == []
    assert ask_links(None) == {"status": "", "errors": ""}
    assert ask_links(lambda command: (9, "half an answer", "")) == {"status": "", "errors": ""}
