"""Locks: pinned by hash or refused; and what an environment has other than its lock says."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_lock import (
    LockError,
    differences,
    engine_id,
    installed_versions,
    parse_lock,
)

HASH = "--hash=sha256:" + "0123456789abcdef" * 4
LOCK = f"# made by a tool\nTorch==2.13.0+cpu \\\n    {HASH}\nuvloop==0.23.0 ; sys_platform != 'win32' \\\n    {HASH} \\\n    {HASH}\n"


def test_pins() -> None:
    assert parse_lock(LOCK, "x") == {"torch": "2.13.0+cpu", "uvloop": "0.23.0"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "found none"),
        ("torch==2.13.0\n", "without a hash"),
        (f"torch==2.13.0\nvllm==1 \\\n    {HASH}\n", "torch is pinned without a hash"),
        (f"torch>=2.13.0 \\\n    {HASH}\n", "found 'torch>=2.13.0"),
        (f"--index-url http://example.invalid\n{LOCK}", "line 1: expected 'name==version'"),
        (f"{LOCK}torch==2 \\\n    {HASH}\n", "pinned twice"),
        ("torch==2.13.0 \\\n    --hash=md5:00\n", "torch is pinned without a hash"),
        (f"torch @ https://example.invalid/torch.whl \\\n    {HASH}\n", "expected 'name==version'"),
    ],
)
def test_what_is_no_lock(text: str, sentence: str) -> None:
    with pytest.raises(LockError, match=sentence):
        parse_lock(text, "some.txt")


def test_every_lock_that_comes_with_plumbline_is_one(checkout: Path) -> None:
    locks = sorted((checkout / "roles/engine/files/locks").glob("*.txt"))
    assert {path.name for path in locks} >= {
        "cpu-cp311.txt",
        *(f"cuda{cuda}-cp3{minor}.txt" for cuda in (12, 13) for minor in (11, 12, 13)),
        "uv.txt",
    }
    for path in locks:
        text = path.read_text()
        pins = parse_lock(text, path.name)
        assert "://" not in text, f"{path.name} names a place"
        if path.name != "uv.txt":
            # What the conversion and the reference need is in the engine's environment.
            assert {"gguf", "accelerate", "transformers", "safetensors", "numpy", "torch"} <= set(pins), path.name
    assert parse_lock((locks[0]).read_text(), "cpu")["torch"].endswith("+cpu")


def test_equal_names_mean_equal_locks() -> None:
    assert engine_id("cpu", "0.32.0", "cp311", "a" * 64) == "cpu-0.32.0-cp311-aaaaaaaa"
    # What is beside the lock's packages (plugins, conda's Python) tells engines apart, in whichever order it is named.
    one, two = (
        engine_id("cpu", "0.32.0", "cp311", "a" * 64, ["b", "c"]),
        engine_id("cpu", "0.32.0", "cp311", "a" * 64, ["c", "b"]),
    )
    assert one == two != engine_id("cpu", "0.32.0", "cp311", "a" * 64, ["b"])


def test_what_differs_from_the_lock(tmp_path: Path) -> None:
    for name in ("torch-2.13.0+cpu", "Some_Thing-1.0", "surplus-3", "broken-1"):
        (tmp_path / f"{name}.dist-info").mkdir()
        if name != "broken-1":
            (tmp_path / f"{name}.dist-info" / "METADATA").write_text("")
    installed = installed_versions(tmp_path)
    assert installed == {"torch": "2.13.0+cpu", "some-thing": "1.0", "surplus": "3"}
    pins = {"torch": "2.13.0+cpu", "some-thing": "2.0", "broken": "1"}
    assert differences(pins, installed, {"vllm": "9"}) == [
        "broken 1 is missing",
        "some-thing is 1.0 instead of 2.0",
        "vllm 9 is missing",
        "surplus 3 is not in the lock",
    ]
    assert differences({"torch": "2.13.0+cpu"}, {"torch": "2.13.0+cpu"}, {}) == []
