"""The mirror that the unit tests ask answers as the Hugging Face hub does: the hub's own client gets the same files from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.download_sources import Source
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.download_web import Web
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.model_downloads import download
from huggingface_hub import HfApi, constants, snapshot_download

from tests.unit.fake_mirror import Mirror, serve

COMMIT = "12fd25f77366fa6b3b4b768ec3050bf629380bac"
FILES = {"config.json": b'{"model_type": "yuan"}', "model.safetensors": bytes(range(256)) * 64, "sub/notes.txt": b"x"}


def test_both_get_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    mirror = Mirror()
    mirror.repository("org/name", COMMIT, FILES, {"model.safetensors"})
    with serve(mirror):
        described = HfApi(endpoint=mirror.url).model_info("org/name", revision=COMMIT, files_metadata=True, token=False)
        assert described.sha == COMMIT
        assert {entry.rfilename for entry in described.siblings or []} == set(FILES)
        theirs = Path(
            snapshot_download(
                "org/name", revision=COMMIT, endpoint=mirror.url, local_dir=tmp_path / "theirs", token=False
            )
        )
        download(Source(f"hf://org/name@{COMMIT}", hub_endpoint=mirror.url), tmp_path / "ours", Web(timeout_seconds=10))
    for name, content in FILES.items():
        assert (theirs / name).read_bytes() == (tmp_path / "ours" / name).read_bytes() == content
