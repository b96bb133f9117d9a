"""Work in another Python: its result comes back, its failure is one sentence, and nothing of it stays."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import worker
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.worker import run_worker
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.worker_result import heard


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Where a worker's home is made, so that a test can look at what stays.
    make = worker.tempfile.mkdtemp
    monkeypatch.setattr(worker.tempfile, "mkdtemp", lambda prefix, dir: make(prefix=prefix, dir=tmp_path))
    tmp_path.chmod(0o755)
    return tmp_path


def source(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    real = worker._source
    monkeypatch.setattr(worker, "_source", lambda name: text.encode() if name == "work" else real(name))


def run(job: str = "{}", timeout: int = 60, unprivileged: bool = False) -> worker.Done:
    return run_worker(sys.executable, "work", (), job, timeout=timeout, unprivileged=unprivileged)


def test_the_result_comes_back_though_a_library_prints(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source(
        monkeypatch,
        "from .worker_result import say\n"
        "def main(job):\n"
        "    print('noise')\n"
        "    say({'job': job, 'many': 'x' * 100000})\n"
        "    print('{}')\n"
        "    return 0\n",
    )
    done = run("the job")
    assert done.result["job"] == "the job"
    assert len(done.result["many"]) == 100_000
    assert done.peak_bytes > 1_000_000
    assert not any(scratch.iterdir())


def test_its_own_reason_is_the_message(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source(
        monkeypatch,
        "from .worker_result import say\ndef main(job):\n    say({'error': 'One sentence.'})\n    return 1\n",
    )
    with pytest.raises(CheckpointError, match=r"^One sentence\.$"):
        run()


def test_a_traceback_becomes_its_last_word(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source(monkeypatch, "def main(job):\n    raise ValueError('no such tensor')\n")
    with pytest.raises(CheckpointError, match=r"ended without a result \(ValueError: no such tensor\)") as caught:
        run()
    assert "Traceback" not in str(caught.value)
    assert not any(scratch.iterdir())


def test_a_killed_worker_is_said_to_lack_memory(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source(monkeypatch, "import os\ndef main(job):\n    os.kill(os.getpid(), 9)\n")
    with pytest.raises(CheckpointError, match="memory ran out"):
        run()


def test_a_time_limit_ends_its_children_too(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = scratch / "child"
    source(
        monkeypatch,
        "import pathlib, subprocess\n"
        "def main(job):\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        f"    pathlib.Path({str(child)!r}).write_text(str(child.pid))\n"
        "    child.wait()\n",
    )
    with pytest.raises(CheckpointError, match="longer than 3 s"):
        run(timeout=3)
    status = Path(f"/proc/{child.read_text()}/stat")
    # Ended, or a zombie that init has not collected yet.
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_it_sees_no_secrets_and_goes_nowhere(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_PASSWORD", "secret")
    source(monkeypatch, "import os\nfrom .worker_result import say\ndef main(job):\n    say(dict(os.environ))\n")
    seen = run().result
    assert "VAULT_PASSWORD" not in seen
    assert seen["HF_HUB_OFFLINE"] == "1"
    assert seen["HOME"].startswith(str(scratch))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up rights")
def test_it_gives_up_roots_rights(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = "/usr/bin/python3"
    if not Path(python).exists():
        pytest.skip("no Python outside root's home, which another user could not reach")
    for parent in scratch.parents:
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o111)
    source(
        monkeypatch,
        "import os\nfrom .worker_result import say\ndef main(job):\n    say({'uid': os.geteuid(), 'groups': os.getgroups()})\n",
    )
    result = run_worker(python, "work", (), "{}", timeout=60).result
    assert result["uid"] != 0
    assert 0 not in result["groups"]


def test_modules_that_run_elsewhere_can_be_carried() -> None:
    for name in ("checkpoint_convert", "likelihood_reference", "likelihood_served", *worker._SHARED):
        assert b"def " in worker._source(name) or name == "checkpoint_errors"


def test_no_result_is_none() -> None:
    assert heard("noise\n{}") is None
    assert heard('plumbline-result {"a": 1}\nnoise') == {"a": 1}
