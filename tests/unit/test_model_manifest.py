"""plumbline-verify-model, run as on a node: a file of its own, by the plain Python. Each way of not being what was approved."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import manifest as under_test
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.manifest import Binding
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.model_approval import (
    approve,
    recorded,
    revoke,
)

ENGINE, OPTIONS = "cpu-0.32.0-cp311-00000000", {"dtype": "float32"}


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A copy, as on the node: it must not lean on the package beside it.
    return Path(shutil.copy(str(under_test.__file__), tmp_path_factory.mktemp("bin") / "plumbline-verify-model"))


class Node:
    """A model with its approval, and the tool to verify it."""

    def __init__(self, tool: Path, root: Path) -> None:
        self.tool, self.model, self.approvals = tool, root / "model" / "rev", root / "approvals"
        (self.model / "sub").mkdir(parents=True)
        (self.model / "config.json").write_text("{}")
        (self.model / "model.safetensors").write_bytes(bytes(range(256)) * 40_000)
        (self.model / "sub" / "extra.json").write_text("[]")
        self.write_manifest({name: self.entry(name) for name in ("config.json", "model.safetensors", "sub/extra.json")})
        approve(self.approvals, self.model, self.binding(), [{"name": "model_likelihood", "scope": "m", "value": 0.1}])

    def entry(self, name: str) -> dict[str, object]:
        data = (self.model / name).read_bytes()
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def write_manifest(self, files: object) -> None:
        (self.model / "manifest.json").write_text(json.dumps({"schema": "plumbline.model/1", "files": files}))

    def binding(self) -> Binding:
        return Binding(hashlib.sha256((self.model / "manifest.json").read_bytes()).hexdigest(), ENGINE, OPTIONS)

    def verify(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        default = ("--engine", ENGINE, "--option", "dtype=float32")
        return subprocess.run(
            [
                sys.executable,
                "-I",
                str(self.tool),
                "--approvals",
                str(self.approvals),
                *(arguments or default),
                str(self.model),
            ],
            capture_output=True,
            text=True,
            check=False,
        )

    def refused(self, *words: str, arguments: tuple[str, ...] = ()) -> None:
        done = self.verify(*arguments)
        assert done.returncode == 1, done
        assert done.stdout == ""
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        for word in (
            *words,
            "expected" if "cannot be read" not in done.stderr and "names the file" not in done.stderr else "",
        ):
            assert word in done.stderr


@pytest.fixture
def node(tool: Path, tmp_path: Path) -> Node:
    return Node(tool, tmp_path)


def test_what_was_approved_may_serve(node: Node) -> None:
    done = node.verify()
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 files" in done.stdout
    assert ENGINE in done.stdout
    assert node.verify("--files-only").returncode == 0
    assert node.verify("--option", "ignored=without-an-engine").returncode == 0


def test_one_flipped_bit(node: Node) -> None:
    path = node.model / "model.safetensors"
    good = node.entry("model.safetensors")["sha256"]
    data = bytearray(path.read_bytes())
    data[5_000_000] ^= 1
    path.write_bytes(data)
    node.refused(
        "model.safetensors", str(good), hashlib.sha256(data).hexdigest(), "remove the directory", "run the stage"
    )


def test_other_sizes_missing_and_surplus_files(node: Node) -> None:
    (node.model / "config.json").write_text("{} ")
    node.refused("config.json", "2 bytes", "found 3")
    (node.model / "config.json").unlink()
    node.refused("config.json", "found none")
    (node.model / "config.json").write_text("{}")
    (node.model / "tokenizer.json").write_text("{}")
    node.refused("tokenizer.json", "the manifest does not know")


def test_a_link_in_place_of_a_file(node: Node, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("{}")
    (node.model / "config.json").unlink()
    (node.model / "config.json").symlink_to(elsewhere)
    node.refused("config.json", "regular file")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../outside", "./config.json", "", "a\\b", "a\0b"])
def test_a_manifest_that_leads_outside(node: Node, tmp_path: Path, name: str) -> None:
    (tmp_path / "model" / "outside").write_text("x")
    node.write_manifest({name: {"bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}})
    node.refused("does not lie in the model's directory", arguments=("--files-only",))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "plumbline.model/1", "files": {}}', '{"schema": "other", "files": {"a": {}}}']
)
def test_manifests_that_are_none(node: Node, text: str) -> None:
    (node.model / "manifest.json").write_text(text)
    node.refused("manifest of the schema")


def test_entries_that_state_no_hash(node: Node) -> None:
    node.write_manifest({"config.json": {"bytes": 2}})
    done = node.verify("--files-only")
    assert done.returncode == 1
    assert "states no SHA-256" in done.stderr


def test_no_manifest_and_no_directory(node: Node) -> None:
    (node.model / "manifest.json").unlink()
    node.refused("manifest.json", "found none")
    shutil.rmtree(node.model)
    node.refused("found none")


def test_another_manifest_is_not_approved(node: Node) -> None:
    node.write_manifest({name: node.entry(name) for name in ("config.json", "model.safetensors", "sub/extra.json")})
    manifest = json.loads((node.model / "manifest.json").read_text())
    manifest["note"] = "the same files"
    (node.model / "manifest.json").write_text(json.dumps(manifest))
    node.refused("found none", "playbooks/model.yml")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--engine", "cpu-0.33.0-cp311-00000000", "--option", "dtype=float32"),
        ("--engine", ENGINE, "--option", "dtype=bfloat16"),
        ("--engine", ENGINE),
        ("--engine", ENGINE, "--option", "dtype=float32", "--option", "quantization=awq"),
    ],
)
def test_the_approval_is_for_one_engine_and_its_options(node: Node, arguments: tuple[str, ...]) -> None:
    node.refused("approval", "found none", arguments=arguments)


def test_a_revoked_approval(node: Node) -> None:
    assert revoke(node.approvals, node.binding())
    assert not revoke(node.approvals, node.binding())
    node.refused("approval")
    node.refused("approval", arguments=("--option", "x=y"))


def test_an_approval_under_anothers_name(node: Node) -> None:
    path = node.approvals / node.binding().file_name
    approval = json.loads(path.read_text())
    approval["engine_id"] = "another"
    path.write_text(json.dumps(approval))
    node.refused("found another")
    assert recorded(node.approvals, node.model, node.binding()) is None
    path.write_text("{")
    node.refused("cannot be read")


def test_a_file_that_cannot_be_read(node: Node) -> None:
    # A directory where the approval should be: unreadable also for root, who runs the tests.
    path = node.approvals / node.binding().file_name
    path.unlink()
    path.mkdir()
    node.refused("cannot be read")


def test_wrong_usage(node: Node) -> None:
    assert node.verify("--option", "nonsense").returncode == 2


def test_what_is_recorded_comes_back(node: Node) -> None:
    assert recorded(node.approvals, node.model, node.binding()) == [
        {"name": "model_likelihood", "scope": "m", "value": 0.1}
    ]
    assert recorded(node.approvals, node.model, node.binding()._replace(engine="other")) is None
