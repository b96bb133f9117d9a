"""Run Plumbline's own code in the engine's Python: a process of its own with limits, as a user without rights where possible."""

from __future__ import annotations

import contextlib
import os
import pkgutil
import pwd
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint_errors import CheckpointError
from .worker_result import heard

_PACKAGE = "plumbline_worker"
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from {package}.{module} import main; sys.exit(main(sys.stdin.read()))"
)
_SHARED = ("checkpoint_errors", "worker_result")
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "LC_ALL": "C.UTF-8",
}


@dataclass(frozen=True)
class Done:
    """What a worker gave back, and the largest resident set of its processes in bytes."""

    result: dict[str, Any]
    peak_bytes: int


def run_worker(
    python: str,
    module: str,
    needs: Sequence[str],
    job: str,
    *,
    timeout: int,
    environment: Mapping[str, str] | None = None,
    unprivileged: bool = True,
    punctual: bool = False,
) -> Done:
    """Run `main(job)` of one of these modules in another Python and return what it said.

    `needs` are the modules it imports beside it; a `punctual` one comes before others to the processor, where that is allowed.
    Raises CheckpointError with the worker's own reason, or with its last words.
    """
    with _home(unprivileged) as (home, user):
        package = home / _PACKAGE
        package.mkdir(mode=0o755)
        (package / "__init__.py").write_text("", encoding="utf-8")
        for name in dict.fromkeys((module, *needs, *_SHARED)):
            (package / f"{name}.py").write_bytes(_source(name))
        errors = home / "errors"
        with errors.open("w+b") as file:
            code, output = _run(
                [python, "-I", "-c", _START.format(package=_PACKAGE, module=module), str(home)],
                job,
                errors=file,
                home=home,
                user=user,
                timeout=timeout,
                more=environment or {},
                punctual=punctual,
            )
            file.seek(max(0, file.seek(0, os.SEEK_END) - 20_000))
            said = file.read().decode(errors="replace")
    result = heard(output)
    if code == -signal.SIGALRM:
        raise CheckpointError(
            f"The work in {python} took longer than {timeout} s and was ended: raise the time limit, or look what else the machine does."
        )
    if result is None:
        raise CheckpointError(f"The work in {python} ended without a result ({_last_words(said, code)}).")
    if "error" in result:
        raise CheckpointError(str(result["error"]))
    return Done(result, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)


def _run(
    arguments: list[str],
    job: str,
    *,
    errors: Any,
    home: Path,
    user: pwd.struct_passwd | None,
    timeout: int,
    more: Mapping[str, str],
    punctual: bool,
) -> tuple[int, str]:
    environment = {
        "PATH": f"{Path(arguments[0]).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(home),
        "XDG_CACHE_HOME": str(home),
        "VLLM_CACHE_ROOT": str(home / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
        **_OFFLINE,
        **more,
    }
    rights: dict[str, Any] = {}
    if user is not None:
        rights = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    process = subprocess.Popen(
        arguments,
        env=environment,
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=_limit,  # noqa: PLW1509 - this process has no threads
        **rights,
    )
    if punctual:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(process.pid, os.SCHED_RR, os.sched_param(1))
    try:
        output, _ = process.communicate(job, timeout=timeout)
        code = process.returncode
    except subprocess.TimeoutExpired:
        output, code = "", -signal.SIGALRM
    finally:
        # The engine starts processes of its own; none may outlive this call.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return code, output


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # When memory runs out, this goes and the server stays.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    os.umask(0o022)


@contextlib.contextmanager
def _home(unprivileged: bool) -> Iterator[tuple[Path, pwd.struct_passwd | None]]:
    user = None
    if unprivileged and os.geteuid() == 0:
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam("nobody")
    home = Path(tempfile.mkdtemp(prefix="plumbline-", dir="/var/tmp"))
    try:
        home.chmod(0o755)
        if user is not None:
            os.chown(home, user.pw_uid, user.pw_gid)
        yield home, user
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _source(name: str) -> bytes:
    # Not a path: on the node these modules lie in Ansible's archive.
    data = pkgutil.get_data(__package__ or __name__.rpartition(".")[0], f"{name}.py")
    if data is None:
        raise CheckpointError(f"Plumbline's own module {name} was not carried to the node: report this.")
    return data


def _last_words(said: str, code: int) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if code == -signal.SIGKILL:
        return "it was killed, most likely because memory ran out"
    # vLLM logs its cause before it wraps it; the last exception line is what a person can use.
    causes = [line for line in lines if "Error:" in line and "Engine core initialization failed" not in line]
    return (causes or lines or [f"exit status {code}"])[-1][-400:]
