"""When the serving unit is restarted, and what is said when it does not start."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.systemd_service import (
    State,
    cause_from_journal,
    parse_handed_on,
    parse_record,
    parse_show,
    reasons_to_start,
    was_refused,
)

SHOW = """Job=0
MainPID=1234
NRestarts=2
Result=success
StatusText=ready: 'Paris' in 1.2 s (61 s)
LoadState=loaded
ActiveState=active
SubState=running
UnitFileState=enabled
NeedDaemonReload=no
InvocationID=6f3c1c1e6b1b4d3b8d6c0a4f0e9d2b11
"""
RUNNING = parse_show(SHOW)
RECORD = {"configuration": "c1", "key_sha256": "k1", "main_pid": 1234}


def test_show() -> None:
    assert (
        State(
            load="loaded",
            enabled=True,
            active="active",
            sub="running",
            result="success",
            main_pid=1234,
            restarts=2,
            invocation="6f3c1c1e6b1b4d3b8d6c0a4f0e9d2b11",
            needs_reload=False,
            status_text="ready: 'Paris' in 1.2 s (61 s)",
            job_pending=False,
        )
        == RUNNING
    )
    assert RUNNING.running
    assert not RUNNING.failed_start
    assert not parse_show(SHOW.replace("Job=0", "Job=812")).running
    assert not parse_show("").running


@pytest.mark.parametrize(
    "change",
    [
        {"active": "failed"},
        {"active": "activating", "sub": "auto-restart"},
        {"active": "activating", "sub": "start-pre", "restarts": 1},
    ],
)
def test_failed_starts(change: dict[str, object]) -> None:
    assert replace(RUNNING, **change).failed_start  # type: ignore[arg-type]


def test_a_first_start_under_way_has_not_failed() -> None:
    assert not replace(RUNNING, active="activating", sub="start-post", restarts=0).failed_start


def test_what_runs_as_wanted_is_left_alone() -> None:
    assert reasons_to_start(RUNNING, RECORD, "c1", "k1") == []


def test_each_difference_is_a_reason() -> None:
    assert reasons_to_start(RUNNING, RECORD, "c2", "k1") == ["its configuration, engine or model changed"]
    assert reasons_to_start(RUNNING, RECORD, "c1", "k2") == ["its API key changed"]
    assert len(reasons_to_start(RUNNING, RECORD, "c2", "k2")) == 2
    assert reasons_to_start(replace(RUNNING, active="failed", sub="failed"), RECORD, "c1", "k1") == [
        "it is failed (failed)"
    ]
    # Restarted by somebody, and the record is of the process before: it is not known what runs.
    assert "no record" in reasons_to_start(replace(RUNNING, main_pid=9), RECORD, "c1", "k1")[0]
    assert "no record" in reasons_to_start(RUNNING, {}, "c1", "k1")[0]


def test_a_damaged_record_is_none() -> None:
    assert parse_record('{"configuration": ') == {}
    assert parse_record("[1]") == {}
    assert parse_record('{"main_pid": 1}') == {"main_pid": 1}


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            [
                "plumbline-ready: waiting: no answer from http://127.0.0.1:8000/v1: [Errno 111] Connection refused",
                "plumbline-ready: refused: the model answers nonsense: equal logits",
                "plumbline-serving.service: Control process exited, code=exited, status=78/CONFIG",
            ],
            "the model answers nonsense: equal logits",
        ),
        (
            ["plumbline-verify-model: model.safetensors: expected SHA-256 aa, found bb", "Control process exited"],
            "model.safetensors: expected SHA-256 aa, found bb",
        ),
        (
            ["usage: vllm serve [model_tag] [options]", "vllm: error: unrecognized arguments: --no-such-option"],
            "vllm: error: unrecognized arguments: --no-such-option",
        ),
        (
            [
                "(EngineCore pid=7) ERROR ValueError: To serve at least one request, 9 GiB KV cache is needed",
                "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
                "plumbline-ready: not ready: the engine ended before it answered; the lines above say why",
            ],
            "ValueError: To serve at least one request, 9 GiB KV cache is needed",
        ),
        (
            ["x.service: Failed to execute /opt/x: No such file or directory"],
            "x.service: Failed to execute /opt/x: No such file or directory",
        ),
        (
            ["plumbline-ready: not ready: no right completion in time; last: HTTP 503"],
            "no right completion in time; last: HTTP 503",
        ),
        (["all is well"], ""),
        ([], ""),
    ],
)
def test_the_one_line_that_says_why(lines: list[str], cause: str) -> None:
    assert cause_from_journal(lines) == cause


def test_a_model_that_passed_is_no_cause() -> None:
    passed = "plumbline-verify-model: /opt/m: 7 files, 272620543 bytes as recorded, approved for cpu-0.32.0"
    assert cause_from_journal([passed]) == ""
    assert not was_refused([passed])
    assert was_refused(["plumbline-verify-model: /opt/m/model.safetensors: expected SHA-256 aa, found bb"])


def test_refusals() -> None:
    assert not was_refused(["plumbline-ready: error: failed starts cannot be counted"])
    assert was_refused(["plumbline-ready: refused: wrong"])
    assert not was_refused(["plumbline-ready: not ready: the engine ended"])


def test_what_the_stages_before_handed_on() -> None:
    unit = "[Service]\nUser=x\nmodel_name=no\n\n[X-Plumbline]\n# a note\nmodel_name=smol\nbase_url=http://127.0.0.1:8000/v1\nodd=a=b\n[Install]\nWantedBy=y\n"
    assert parse_handed_on(unit) == {"model_name": "smol", "base_url": "http://127.0.0.1:8000/v1", "odd": "a=b"}
    assert parse_handed_on("") == {}
