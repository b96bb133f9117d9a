"""Evidence is appended whole or not at all, and read however damaged it is."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
from pathlib import Path

import jsonschema
import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import evidence
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge
from hypothesis import given
from hypothesis import strategies as st


def head(kind: str, **fields: object) -> dict:
    record = evidence.envelope(kind, run="r", host="node1", stage="accept", task="t", check_mode=False)
    return {**record, **fields}


def check_record(**measurement: object) -> dict:
    rule = {"kind": "fraction_of_limit", "fail": 0.6, "unit": "B/s"}
    check = judge({"name": "bandwidth", "scope": "numa0", "unit": "B/s", **measurement}, {"bandwidth": rule})
    return head("check", **check.record())


@pytest.fixture(scope="module")
def schema(checkout: Path) -> jsonschema.Draft202012Validator:
    content = json.loads((checkout / "docs/evidence.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(content)
    return jsonschema.Draft202012Validator(content)


@pytest.mark.parametrize(
    "record",
    [
        check_record(value=163.2e9, limit=204.8e9, samples=[1.0, 2.0], conditions={"threads": 32}),
        check_record(value=float("nan"), limit=float("inf")),
        check_record(skipped="no DIMM table"),
        check_record(error="gcc is missing"),
        check_record(),
        {**check_record(value=1), "endpoint": "http://127.0.0.1:8000/v1"},
        head("failure", message="no route to host", unreachable=True, handled=False),
        head("stage", seconds=1.5, changed=0, failed=1),
        head("restart", how="The machine is power cycled", seconds=412),
    ],
    ids=lambda record: record["kind"],
)
def test_records_fit_the_schema(schema: jsonschema.Draft202012Validator, record: dict, tmp_path: Path) -> None:
    path = tmp_path / "node1.jsonl"
    evidence.append(path, [record])
    found = evidence.read(path)
    assert found.problems == []
    schema.validate(found.records[0])


@pytest.mark.parametrize(
    "change",
    [
        {"status": "GOOD"},
        {"kind": "rumour"},
        {"samples": ["a"]},
        {"surplus": 1},
        {"schema": 2},
        {"time": "yesterday"},
        {"limit": "x"},
    ],
)
def test_the_schema_refuses(schema: jsonschema.Draft202012Validator, change: dict) -> None:
    assert not schema.is_valid({**check_record(value=1), **change})


def test_modes_and_place(tmp_path: Path) -> None:
    old = os.umask(0o000)
    try:
        path = evidence.evidence_path(str(tmp_path / "artifacts"), "run", "node1")
        evidence.append(path, [head("stage")])
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)] == [0o750, 0o750]


@pytest.mark.parametrize("host", ["../../etc/passwd", "..", ".", "a/b", "a\nb", "a\0b"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, host: str) -> None:
    path = evidence.evidence_path(str(tmp_path), host, host)
    assert path.parent.parent == tmp_path
    evidence.append(path, [head("stage")])
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [path]


def test_an_unwritable_folder_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        evidence.append(tmp_path / "file" / "run" / "node1.jsonl", [head("stage")])


def _write_many(path: Path, writer: int) -> None:
    for number in range(40):
        evidence.append(path, [head("stage", writer=writer, number=number, filler="x" * 20_000)])


def test_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "node1.jsonl"
    writers = [
        multiprocessing.get_context("fork").Process(target=_write_many, args=(path, writer)) for writer in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = evidence.read(path)
    assert found.problems == []
    assert sorted((record["writer"], record["number"]) for record in found.records) == [
        (w, n) for w in range(4) for n in range(40)
    ]


def test_a_cut_off_line_does_not_spoil_the_next_record(tmp_path: Path) -> None:
    path = tmp_path / "node1.jsonl"
    evidence.append(path, [head("stage", seconds=1)])
    with path.open("a") as stream:
        stream.write('{"schema": 1, "kind": "che')
    assert evidence.read(path).problems == ["node1.jsonl, line 2: is cut off, dropped"]
    evidence.append(path, [head("stage", seconds=2)])
    found = evidence.read(path)
    assert [record["seconds"] for record in found.records] == [1, 2]
    assert found.problems == ["node1.jsonl, line 2: is no JSON, dropped"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"\xff\xfe\n", "is no JSON"),
        (b"[1]\n", "is no JSON object"),
        (b'{"schema": 2}\n', "has schema 2"),
        (b'{"schema": 1, "kind": "rumour"}\n', "is of the unknown kind 'rumour'"),
        (b'{"schema": 1, "kind": ["check"]}\n', "is of the unknown kind"),
        (b'{"schema": 1, "kind": "stage", "time": "x"}\n', "lacks run, host, stage"),
        (b"[" * 100_000 + b"\n", "is no JSON"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "node1.jsonl"
    path.write_bytes(content)
    found = evidence.read(path)
    assert found.records == []
    assert len(found.problems) == 1
    assert words in found.problems[0]


def test_an_unknown_status_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "node1.jsonl"
    evidence.append(path, [{**check_record(value=1), "status": "GOOD"}])
    assert evidence.read(path).problems == ["node1.jsonl, line 1: has the unknown status 'GOOD', dropped"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", {"a": 1}),
        ("samples", True),
        ("conditions", [None]),
        ("rule", "none"),
        ("limit", "204.8e9"),
        ("reason", None),
        ("unit", 7),
    ],
)
def test_a_field_of_another_type_is_dropped_with_its_line(tmp_path: Path, field: str, value: object) -> None:
    """The report counts on the types: what has others is damage, and no reason for a traceback."""
    path = tmp_path / "node1.jsonl"
    evidence.append(path, [check_record(value=1), {**check_record(value=1), field: value}])
    found = evidence.read(path)
    assert len(found.records) == 1
    assert len(found.problems) == 1
    assert field in found.problems[0]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    found = evidence.read(tmp_path / "node1.jsonl")
    assert found.records == []
    assert "cannot be read" in found.problems[0]


@given(st.binary(max_size=200))
def test_no_damage_is_too_great(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("evidence") / "node1.jsonl"
    path.write_bytes(content)
    found = evidence.read(path)
    assert found.records == []
