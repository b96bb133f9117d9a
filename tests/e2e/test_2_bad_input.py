"""Bad input ends with one clear sentence, a non-zero exit and nothing half-done."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import Lab

pytestmark = pytest.mark.lab


def extra(**variables: object) -> tuple[str, str]:
    return "-e", json.dumps(variables)


def test_misspelt_bios_attribute(lab: Lab) -> None:
    outcome = lab.playbook("playbooks/bios.yml", *extra(bios_settings={"TurboMod": "Enabled"}))
    outcome.refused_with("TurboMod", "TurboMode")


def test_misspelt_bios_value(lab: Lab) -> None:
    outcome = lab.playbook("playbooks/bios.yml", *extra(bios_settings={"TurboMode": "Enabeld"}))
    outcome.refused_with("TurboMode", "Enabeld", "Enabled")


def test_bmc_with_the_wrong_password(lab: Lab) -> None:
    outcome = lab.playbook("playbooks/bios.yml", *extra(bmc_password="not the password"))
    outcome.refused_with("password")
    assert "not the password" not in outcome.output


def test_bmc_that_is_down(lab: Lab) -> None:
    outcome = lab.playbook("playbooks/bios.yml", *extra(bmc_port=1))
    outcome.refused_with("BMC")


def test_unknown_variable(lab: Lab) -> None:
    lab.playbook("site.yml", *extra(serving_prot=8000)).refused_with("serving_prot", "serving_port")


def test_wrong_type(lab: Lab) -> None:
    lab.playbook("site.yml", *extra(serving_port="eight thousand")).refused_with("serving_port", "int")


def test_slo_that_contradicts_itself(lab: Lab) -> None:
    slo = {
        "prompt_tokens": 128,
        "completion_tokens": 128,
        "decode_tokens_per_second": 42,
        "end_to_end_latency_p99_seconds": 0.86,
    }
    lab.playbook("site.yml", *extra(gates_slo=slo)).refused_with("128", "42", "0.86")


def test_port_already_in_use(lab: Lab) -> None:
    lab.node("systemd-run --unit=squatter --quiet python3 -m http.server 8123 && sleep 2")
    try:
        outcome = lab.playbook("playbooks/serving.yml", *extra(serving_port=8123))
        outcome.refused_with("8123", "python3")
        assert lab.node("systemctl is-active plumbline-serving.service") == "active"
    finally:
        lab.node("systemctl stop squatter", check=False)
