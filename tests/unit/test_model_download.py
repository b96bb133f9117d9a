"""Checkpoints from mirrors, S3 and the hub: whole and right, or one sentence and nothing that looks finished."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import download_file, model_downloads
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.download_s3 import S3Keys, object_url
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.download_sources import Source, items
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.download_web import (
    DownloadError,
    Web,
    shown,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.model_downloads import download, growing_of

from lab.bmc.tls import generate
from tests.unit.fake_mirror import Mirror, serve

CONFIG = b'{"model_type": "yuan"}'
WEIGHTS = bytes(range(256)) * 4096
COMMIT = "12fd25f77366fa6b3b4b768ec3050bf629380bac"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


FILES = {"config.json": sha256(CONFIG), "model.safetensors": sha256(WEIGHTS)}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with serve(Mirror({"/m/config.json": CONFIG, "/m/model.safetensors": WEIGHTS})) as running:
        yield running


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def web(waits: list[float]) -> Web:
    return Web(timeout_seconds=10, sleep=waits.append)


def source(mirror: Mirror, **changes: Any) -> Source:
    return Source(**{"location": f"{mirror.url}/m/", "files": FILES, **changes})


def test_a_directory_comes_whole_and_once(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    target = tmp_path / "staging" / "m"
    result = download(source(mirror), target, web)
    assert result.changed
    assert result.downloaded_bytes == result.size_bytes == len(CONFIG) + len(WEIGHTS)
    assert (target / "model.safetensors").read_bytes() == WEIGHTS
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "m", "model.safetensors", "staging"]
    again = download(source(mirror), target, web)
    assert (again.changed, again.downloaded_bytes) == (False, 0)
    assert again.files == result.files


def test_check_mode_writes_nothing(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    assert download(source(mirror), tmp_path / "m", web, check=True).changed
    assert not list(tmp_path.iterdir())


def test_a_broken_connection_goes_on_where_it_broke(
    mirror: Mirror, web: Web, waits: list[float], tmp_path: Path
) -> None:
    mirror.cut["/m/model.safetensors"] = [100_000, 300_000]
    result = download(source(mirror), tmp_path / "m", web)
    assert [headers.get("range") for headers in mirror.asked("/m/model.safetensors")] == [
        None,
        "bytes=100000-",
        "bytes=400000-",
    ]
    assert result.downloaded_bytes == len(CONFIG) + len(WEIGHTS)
    assert waits == [1.0, 2.0]


def test_a_killed_run_goes_on(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    growing = growing_of(tmp_path / "m")
    growing.mkdir()
    (growing / "config.json").write_bytes(CONFIG)
    (growing / ".model.safetensors.partial").write_bytes(WEIGHTS[:1000])
    result = download(source(mirror), tmp_path / "m", web)
    assert result.resumed_bytes == 1000
    assert result.downloaded_bytes == len(WEIGHTS) - 1000
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == WEIGHTS
    assert not mirror.asked("/m/config.json")


def test_what_was_begun_of_another_file_is_begun_anew(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    growing = growing_of(tmp_path / "m")
    growing.mkdir()
    (growing / ".model.safetensors.partial").write_bytes(b"x" * 5000)
    (growing / ".config.json.partial").write_bytes(b"y" * 5000)
    download(source(mirror), tmp_path / "m", web)
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == WEIGHTS
    assert (tmp_path / "m" / "config.json").read_bytes() == CONFIG


def test_a_server_without_ranges(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    mirror.ranges = False
    mirror.cut["/m/model.safetensors"] = [100_000]
    download(source(mirror), tmp_path / "m", web)
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == WEIGHTS


def test_a_server_that_refuses_head(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    mirror.head = False
    assert download(source(mirror), tmp_path / "m", web).changed


def test_transient_answers_are_waited_for_and_final_ones_not(
    mirror: Mirror, web: Web, waits: list[float], tmp_path: Path
) -> None:
    mirror.statuses["/m/config.json"] = [503, 502, 429]
    download(source(mirror), tmp_path / "m", web)
    assert waits == [1.0, 2.0, 4.0]
    waits.clear()
    mirror.statuses["/m/config.json"] = [503] * 50
    with pytest.raises(DownloadError, match=r"answered 503 .*Tried 5 times"):
        download(source(mirror), tmp_path / "n", web)
    assert waits == [1.0, 2.0, 4.0, 8.0]
    waits.clear()
    with pytest.raises(DownloadError, match=r"missing\.json: .* answered 404 .*put the file on the mirror"):
        download(source(mirror, files={"missing.json": "0" * 64}), tmp_path / "n", web)
    assert waits == []
    assert not (tmp_path / "n").exists()


def test_other_bytes_are_refused_and_gone(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    mirror.files["/m/config.json"] = CONFIG + b" "
    with pytest.raises(
        DownloadError,
        match=f"expected the SHA-256 {FILES['config.json']}, found {sha256(CONFIG + b' ')} .* nothing of it was kept",
    ):
        download(source(mirror), tmp_path / "m", web)
    assert not (tmp_path / "m").exists()
    assert not list(growing_of(tmp_path / "m").iterdir())


def test_a_file_that_went_bad_is_fetched_again(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    download(source(mirror), tmp_path / "m", web)
    (tmp_path / "m" / "config.json").write_bytes(b"{}")
    result = download(source(mirror), tmp_path / "m", web)
    assert result.changed
    assert result.downloaded_bytes == len(CONFIG)
    assert (tmp_path / "m" / "config.json").read_bytes() == CONFIG


def test_free_disk_is_looked_for_first(
    mirror: Mirror, web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_downloads, "free_bytes", lambda _path: 1 << 20)
    with pytest.raises(DownloadError, match=r"needs 0\.07 GB at .* 0\.00 GB are free"):
        download(source(mirror), tmp_path / "m", web)
    assert not mirror.asked("/m/model.safetensors")


def test_a_disk_that_fills_in_the_middle(
    mirror: Mirror, web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        monkeypatch.setattr(model_downloads, "free_bytes", lambda _path: 1 << 40)
        monkeypatch.setattr(download_file, "_claim", lambda *_arguments: None)
        with pytest.raises(DownloadError, match=r"could not be written \(No space left on device\).*free disk there"):
            download(source(mirror), small / "m", web)
        assert [path.name for path in small.rglob("*") if path.is_file()] == ["config.json"]
        assert not (small / "m").exists()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_sums_that_are_pinned(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    code = b"raise SystemExit"
    sums = "".join(f"{digest}  {name}\n" for name, digest in {**FILES, "modeling.py": sha256(code)}.items()).encode()
    mirror.files["/m/SHA256SUMS"] = sums
    pinned = source(mirror, files={}, sums_sha256=sha256(sums))
    assert set(download(pinned, tmp_path / "m", web).files) == set(FILES)
    with pytest.raises(DownloadError, match="is not the one that was pinned"):
        download(replace(pinned, sums_sha256="0" * 64), tmp_path / "n", web)
    with pytest.raises(DownloadError, match="nothing pins its bytes"):
        download(source(mirror, files={}), tmp_path / "n", web)


@pytest.mark.parametrize("name", ["../x.json", "/etc/x.json", "a/../../x.json", "a\\x.json", "~root/x.json"])
def test_names_that_leave_the_directory(mirror: Mirror, web: Web, tmp_path: Path, name: str) -> None:
    with pytest.raises(DownloadError, match="does not lie in its directory"):
        source(mirror, files={name: "0" * 64})
    sums = f"{'0' * 64}  {name}\n".encode()
    mirror.files["/m/SHA256SUMS"] = sums
    with pytest.raises(DownloadError, match="does not lie in its directory"):
        download(source(mirror, files={}, sums_sha256=sha256(sums)), tmp_path / "m", web)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"location": "/srv/model"}, "expected https://"),
        ({"files": {"a.json": "abc"}}, "64 hex digits"),
        ({"sums_sha256": "abc"}, "64 hex digits"),
        ({"urls": {"b.json": "https://x/y"}}, "model_source_files does not"),
        ({"location": "https://user:pw@mirror.example/m"}, "holds a user or password"),
        ({"location": "hf://org/name@main"}, "a branch or tag may name other bytes"),
        ({"location": "hf://org/name"}, "expected the commit"),
        ({"location": "hf://../x@" + COMMIT}, "no name of a repository"),
        ({"location": "s3:///x"}, "found no bucket"),
    ],
)
def test_sources_that_cannot_be_meant(mirror: Mirror, web: Web, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DownloadError, match=sentence) as refusal:
        items(source(mirror, **change), web)
    assert "pw" not in str(refusal.value).split(": ")[0]
    assert not mirror.requests


def test_a_single_file(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    mirror.files["/m/x.gguf"] = WEIGHTS
    single = source(mirror, location=f"{mirror.url}/m/x.gguf", files={"x.gguf": sha256(WEIGHTS)})
    download(single, tmp_path / "staged.gguf", web)
    assert [path.name for path in tmp_path.iterdir()] == ["staged.gguf"]
    assert not download(single, tmp_path / "staged.gguf", web).changed
    with pytest.raises(DownloadError, match=r"SHA-256 of x\.gguf"):
        download(replace(single, files={}), tmp_path / "other.gguf", web)


def test_the_hub_at_a_commit(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    files = {
        "config.json": CONFIG,
        "model.safetensors": WEIGHTS,
        "pytorch_model.bin": b"p",
        "modeling.py": b"c",
        "sub/a.json": b"{}",
    }
    mirror.repository("org/name", COMMIT, files, {"model.safetensors", "pytorch_model.bin"})
    hub = Source(f"hf://org/name@{COMMIT}", hub_endpoint=mirror.url, token="hf_secret")
    result = download(hub, tmp_path / "m", web)
    assert set(result.files) == {"config.json", "model.safetensors", "sub/a.json"}
    assert result.files["config.json"]["sha256"] == sha256(CONFIG)
    assert all(headers["authorization"] == "Bearer hf_secret" for _, _, headers in mirror.requests)
    assert not download(hub, tmp_path / "m", web).changed
    with pytest.raises(DownloadError, match="the hub has"):
        download(replace(hub, files={"model.safetensors": "0" * 64}), tmp_path / "n", web)
    with pytest.raises(DownloadError, match="which the commit does not hold"):
        download(replace(hub, files={"other.json": "0" * 64}), tmp_path / "n", web)
    assert set(download(replace(hub, include=["*.bin"]), tmp_path / "o", web).files) == {"pytorch_model.bin"}


def test_one_file_of_the_hub(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    mirror.repository("org/name", COMMIT, {"q/x.gguf": WEIGHTS, "q/y.gguf": CONFIG}, {"q/x.gguf", "q/y.gguf"})
    one = Source(f"hf://org/name@{COMMIT}/q/x.gguf", files={"x.gguf": sha256(WEIGHTS)}, hub_endpoint=mirror.url)
    download(one, tmp_path / "staged.gguf", web)
    assert (tmp_path / "staged.gguf").read_bytes() == WEIGHTS
    with pytest.raises(DownloadError, match="expected the SHA-256"):
        download(replace(one, files={"x.gguf": "0" * 64}), tmp_path / "other.gguf", web)
    with pytest.raises(DownloadError, match=r"does not hold q/z\.gguf"):
        download(replace(one, location=f"hf://org/name@{COMMIT}/q/z.gguf"), tmp_path / "other.gguf", web)
    with pytest.raises(DownloadError, match="expected the commit"):
        download(replace(one, location=f"hf://org/name@{COMMIT}/config.json"), tmp_path / "other.gguf", web)


def test_a_small_file_of_the_hub_is_checked_by_its_git_id(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    mirror.repository("org/name", COMMIT, {"config.json": CONFIG}, set())
    mirror.files[f"/org/name/resolve/{COMMIT}/config.json"] = CONFIG.replace(b"yuan", b"evil")
    with pytest.raises(DownloadError, match="expected the git id"):
        download(Source(f"hf://org/name@{COMMIT}", hub_endpoint=mirror.url), tmp_path / "m", web)


def test_a_token_does_not_follow_a_redirect_to_another_host(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    with serve(Mirror({"/cdn": CONFIG})) as cdn:
        mirror.redirects["/m/config.json"] = f"{cdn.url}/cdn?signature=s"
        download(source(mirror, token="secret", files={"config.json": FILES["config.json"]}), tmp_path / "m", web)
        assert mirror.asked("/m/config.json")[0]["authorization"] == "Bearer secret"
        assert cdn.requests
        assert not any("authorization" in headers for _, _, headers in cdn.requests)


def test_a_token_is_not_sent_in_the_clear(web: Web) -> None:
    with pytest.raises(DownloadError, match="over https only"):
        web.open("GET", "http://mirror.example/x", {"Authorization": "Bearer secret"})


def test_signed_urls(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    mirror.files["/bucket/obj"] = CONFIG
    signed = source(
        mirror,
        files={"config.json": FILES["config.json"]},
        urls={"config.json": f"{mirror.url}/bucket/obj?X-Amz-Signature=topsecret"},
        token="t",
    )
    download(signed, tmp_path / "m", web)
    assert "authorization" not in mirror.asked("/bucket/obj")[0]
    del mirror.files["/bucket/obj"]
    with pytest.raises(DownloadError, match="answered 404") as refusal:
        download(signed, tmp_path / "n", web)
    assert "topsecret" not in str(refusal.value)
    assert "topsecret" not in repr(signed)


def test_the_signature_of_amazons_documentation() -> None:
    # https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html, "Example: GET Object"
    keys = S3Keys(
        "AKIAIOSFODNN7EXAMPLE",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        now=lambda: datetime(2013, 5, 24, tzinfo=timezone.utc),
    )
    headers = keys.sign("GET", "https://examplebucket.s3.amazonaws.com/test.txt", {"Range": "bytes=0-9"})
    assert headers["Authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )
    assert "wJalr" not in repr(keys)


def test_a_bucket(mirror: Mirror, web: Web, tmp_path: Path) -> None:
    mirror.files["/bucket/models/yuan 2/config.json"] = CONFIG
    keys = S3Keys("AK", "SK", "eu-central-1", "session")
    bucket = Source(
        "s3://bucket/models/yuan 2", files={"config.json": FILES["config.json"]}, s3_endpoint=mirror.url, s3_keys=keys
    )
    download(bucket, tmp_path / "m", web)
    (asked,) = mirror.asked("/bucket/models/yuan 2/config.json")
    assert "/eu-central-1/s3/aws4_request" in asked["authorization"]
    assert asked["x-amz-security-token"] == "session"
    assert "x-amz-security-token" in asked["authorization"]
    assert object_url("https://e/", "b", "a b/c+d") == "https://e/b/a%20b/c%2Bd"


def test_the_certificate_of_the_mirror(tmp_path: Path, waits: list[float]) -> None:
    ca, certificate, key = generate(tmp_path / "tls", ["127.0.0.1"])
    with serve(Mirror({"/m/config.json": CONFIG}), (certificate, key)) as mirror:
        one = source(mirror, files={"config.json": FILES["config.json"]}, token="secret")
        with pytest.raises(
            DownloadError, match=r"its certificate was not accepted \(.*\); name the CA .* model_source_ca_file"
        ):
            download(one, tmp_path / "m", Web(sleep=waits.append))
        assert waits == []
        assert not mirror.requests
        assert download(one, tmp_path / "m", Web(ca_file=str(ca))).changed
        assert download(one, tmp_path / "n", Web(validate_certs=False)).changed
        with serve(Mirror({"/x": CONFIG})) as plain:
            mirror.redirects["/m/config.json"] = f"{plain.url}/x"
            with pytest.raises(DownloadError, match="not protected by TLS"):
                download(one, tmp_path / "o", Web(ca_file=str(ca)))
            assert not plain.requests
    with pytest.raises(DownloadError, match="cannot be read"):
        Web(ca_file="/nonexistent.pem")


def test_a_server_that_is_not_there(tmp_path: Path, waits: list[float]) -> None:
    web = Web(timeout_seconds=1, attempts=2, sleep=waits.append)
    with pytest.raises(DownloadError, match=r"the connection failed .*Tried 2 times"):
        download(Source("http://127.0.0.1:9/m", files=FILES), tmp_path / "m", web)
    assert waits == [1.0]


def test_a_proxy_of_the_environment(
    mirror: Mirror, waits: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", mirror.url)
    mirror.files["/m/config.json"] = CONFIG
    one = Source("http://mirror.invalid/m", files={"config.json": FILES["config.json"]})
    download(one, tmp_path / "m", Web(sleep=waits.append))
    assert mirror.asked("/m/config.json")[0]["host"] == "mirror.invalid"


def test_urls_are_shown_without_their_secrets() -> None:
    assert shown("https://u:p@h:8443/a/b?X-Amz-Signature=s#f") == "https://h:8443/a/b"


def run_module(capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    """The module in this process, as Ansible would call it."""
    with patch_module_args(arguments), pytest.raises(SystemExit):
        importlib.import_module("ansible_collections.plumbline.plumbline.plugins.modules.model_download").main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return answer


def test_the_module(mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"source": f"{mirror.url}/m/", "destination": str(tmp_path / "m"), "files": FILES, "token": "hunter22"}
    would = run_module(capsys, **given, _ansible_check_mode=True)
    assert would["changed"]
    assert not (tmp_path / "m").exists()
    done = run_module(capsys, **given)
    assert done["changed"]
    assert done["downloaded_bytes"] == done["size_bytes"] == len(CONFIG) + len(WEIGHTS)
    assert done["files"]["config.json"] == {"sha256": FILES["config.json"], "size_bytes": len(CONFIG)}
    assert not run_module(capsys, **given)["changed"]
    failed = run_module(capsys, **{**given, "destination": str(tmp_path / "n"), "files": {"x.json": "0" * 64}})
    assert failed["failed"]
    assert "answered 404" in failed["msg"]
    assert "hunter22" not in json.dumps(failed)
