"""Power limit, compute mode and ECC of the GPUs: what is refused, what is set, what is read back, and what goes again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge_all
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_driver_plan import DriverWish
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_modes import (
    MODES_UNIT,
    mode_measurements,
    mode_plan,
    mode_problems,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvidia_smi import parse_smi
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree

from tests.unit.test_gpu_driver import FIXTURES, H200, RULES, WISH, Node, node  # noqa: F401 (a fixture)

GPU = "0000:00:06.0"
MODES = DriverWish(power_limit_watts=500, compute_mode="exclusive_process", ecc="disabled")


def answer(**changed: str) -> str:
    """What nvidia-smi of an H200 prints, with other values of these elements."""
    text = H200
    for element, value in changed.items():
        before, tag, after = text.partition(f"<{element}>")
        assert tag, element
        text = before + tag + value + after[after.index("<") :]
    return text


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("h200_580_nvidia-smi-q-x_v13", (700, 700, 200, 700)),
        ("telegraf_nvidia-smi_a100-sxm4-v12", (500, 500, 100, 500)),
        ("telegraf_nvidia-smi_a10g", (300, 300, 100, 300)),
    ],
)
def test_limits_are_read_in_every_schema(name: str, limits: tuple[float, ...]) -> None:
    gpu = parse_smi((FIXTURES / f"{name}.xml").read_text())["gpus"][0]
    keys = ("", "_default", "_minimum", "_maximum")
    assert tuple(gpu[f"power_limit{key}_watts"] for key in keys) == limits


@pytest.mark.parametrize(
    ("text", "wish", "sentence"),
    [
        (H200, {"power_limit_watts": 900}, f"expected 200 to 700 W, which NVIDIA H200 at {GPU} allows, found 900"),
        (H200, {"power_limit_watts": 150}, "found 150"),
        (answer(min_power_limit="N/A"), {"power_limit_watts": 500}, "tells of no limits: set it to 0"),
        (answer(current_ecc="N/A"), {"ecc": "enabled"}, "tells of none: take gpu_driver_ecc out"),
        (answer(compute_mode="N/A"), {"compute_mode": "default"}, "take gpu_driver_compute_mode out"),
    ],
)
def test_what_a_gpu_does_not_allow_is_refused_in_one_sentence(text: str, wish: dict, sentence: str) -> None:
    (problem,) = mode_problems(parse_smi(text), DriverWish(**wish))
    assert sentence in problem
    assert "\n" not in problem


def test_what_a_gpu_allows_is_not_refused_and_a_silent_driver_says_nothing() -> None:
    assert mode_problems(parse_smi(H200), MODES) == []
    assert mode_problems(None, MODES) == []


def test_a_bare_node_gets_a_unit_that_sets_its_modes_after_every_boot(tmp_path: Path) -> None:
    plan = mode_plan(Tree(str(tmp_path)), None, MODES)
    assert (plan["differences"], plan["mode_commands"], plan["ecc_waits"]) == (["modes"], [], False)
    lines = plan["mode_unit_content"].splitlines()
    assert [line for line in lines if line.startswith("ExecStart")] == [
        "ExecStart=nvidia-smi -pl 500",
        "ExecStart=nvidia-smi -c 3",
    ]
    assert "After=nvidia-persistenced.service" in lines
    assert "WantedBy=multi-user.target" in lines


def test_without_a_wish_nothing_differs_and_nothing_is_measured(tmp_path: Path) -> None:
    smi = parse_smi(H200)
    plan = mode_plan(Tree(str(tmp_path)), smi, DriverWish())
    assert (plan["differences"], plan["mode_unit_content"], plan["mode_commands"]) == ([], "", [])
    assert mode_measurements(smi["gpus"][0], DriverWish()) == []


def test_ecc_is_set_on_the_gpu_and_waits_for_the_restart(tmp_path: Path) -> None:
    tree, wish = Tree(str(tmp_path)), DriverWish(ecc="disabled")
    plan = mode_plan(tree, parse_smi(H200), wish)
    assert plan["differences"] == ["ecc"]
    assert plan["mode_commands"] == [["nvidia-smi", "-i", GPU, "-e", "0"]]
    waiting = mode_plan(tree, parse_smi(answer(pending_ecc="Disabled")), wish)
    assert (waiting["differences"], waiting["mode_commands"], waiting["ecc_waits"]) == ([], [], True)
    done = mode_plan(tree, parse_smi(answer(pending_ecc="Disabled", current_ecc="Disabled")), wish)
    assert (done["differences"], done["ecc_waits"]) == ([], False)


def test_a_second_look_at_modes_that_are_set_finds_nothing(node: Node) -> None:  # noqa: F811
    wish = replace(MODES, ecc="")
    node.put(MODES_UNIT, mode_plan(node.tree, None, wish)["mode_unit_content"].strip())
    text = answer(compute_mode="Exclusive_Process", current_power_limit="500.00 W")
    assert mode_plan(node.tree, parse_smi(text), wish)["differences"] == []
    # Somebody set another limit by hand.
    assert mode_plan(node.tree, parse_smi(answer(compute_mode="Exclusive_Process")), wish)["differences"] == ["modes"]


def test_what_nobody_wishes_any_more_goes_back_to_the_gpus_default(node: Node) -> None:  # noqa: F811
    node.put(MODES_UNIT, mode_plan(node.tree, None, MODES)["mode_unit_content"].strip())
    text = answer(compute_mode="Exclusive_Process", current_power_limit="500.00 W")
    plan = mode_plan(node.tree, parse_smi(text), DriverWish())
    assert (plan["differences"], plan["mode_unit_content"]) == (["modes"], "")
    assert plan["mode_commands"] == [
        ["nvidia-smi", "-i", GPU, "-pl", "700"],
        ["nvidia-smi", "-i", GPU, "-c", "0"],
    ]
    # What the inventory never set is not its to set back.
    kept = mode_plan(node.tree, parse_smi(text), DriverWish(compute_mode="exclusive_process"))
    assert kept["mode_commands"] == [["nvidia-smi", "-i", GPU, "-pl", "700"]]


@pytest.mark.parametrize(
    ("changed", "statuses"),
    [
        ({"current_power_limit": "500.00 W", "compute_mode": "Exclusive_Process"}, ("OK", "OK")),
        ({"compute_mode": "Exclusive_Process"}, ("CRITICAL", "OK")),
        ({"current_power_limit": "500.00 W"}, ("OK", "CRITICAL")),
        ({"current_power_limit": "N/A", "compute_mode": "N/A"}, ("UNKNOWN", "UNKNOWN")),
    ],
)
def test_the_modes_are_read_back_and_judged(changed: dict[str, str], statuses: tuple[str, str]) -> None:
    gpu = parse_smi(answer(**changed))["gpus"][0]
    checks = judge_all(mode_measurements(gpu, MODES), RULES)
    assert [check.name for check in checks] == ["gpu_power_limit", "gpu_compute_mode"]
    assert tuple(check.status for check in checks) == statuses


def test_ecc_that_did_not_take_fails_its_gate_with_the_right_cause(node: Node) -> None:  # noqa: F811
    wish = replace(WISH, ecc="disabled")
    name = f"gpu_ecc_mode {GPU}"
    assert node.judge(wish) == {name: "CRITICAL"}
    assert "before the driver was loaded" in node.measure(wish)[name]["cause"]
    node.answers["timeout"] = (0, answer(pending_ecc="Disabled"), "")
    assert "waits for a restart" in node.measure(wish)[name]["cause"]
    assert node.plan(wish)["problems"] == []
    node.answers["timeout"] = (0, answer(pending_ecc="Disabled", current_ecc="Disabled"), "")
    assert node.judge(wish) == {}


def test_a_container_is_not_blamed_for_the_modes_that_its_host_sets(node: Node) -> None:  # noqa: F811
    assert node.judge(replace(WISH, power_limit_watts=500, ecc="disabled")) != {}
    inside = replace(WISH, power_limit_watts=500, compute_mode="prohibited", ecc="disabled", container=True)
    assert node.judge(inside) == {"gpu_count node": "SKIPPED"}
