"""A model that is not what it should be does not serve: damaged files, damaged checkpoints, damaged sources."""

from __future__ import annotations

import json
import re

import pytest

from tests.e2e.conftest import Lab

pytestmark = pytest.mark.lab

PLAYBOOK = "playbooks/model.yml"
# The command of roles/model/defaults/main.yml.
DIGEST = (
    r"LC_ALL=C ls | grep -E '\.(json|safetensors|txt|model|jinja|tiktoken)$|^(LICENSE|NOTICE|LICENSE\.md|README\.md)$' "
    r"| grep -vE '^(manifest|reference)\.json$' | xargs sha256sum | sha256sum"
)
DAMAGE = """
import shutil, sys
from pathlib import Path
from safetensors.torch import load_file, save_file
source, target, how = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
shutil.rmtree(target, ignore_errors=True)
target.mkdir()
for path in source.glob('*.json'):
    if path.name not in ('manifest.json', 'reference.json', 'model.safetensors.index.json'):
        shutil.copy(path, target)
weights = load_file(next(source.glob('*.safetensors')))
if how == 'tied':
    weights['lm_head.weight'] = weights.pop('model.embed_tokens.weight')
else:
    for tensor in weights.values():
        tensor.zero_()
save_file(weights, target / 'model.safetensors', metadata={'format': 'pt'})
"""


def extra(**variables: object) -> tuple[str, str]:
    return "-e", json.dumps(variables)


@pytest.fixture(scope="module")
def model(lab: Lab) -> str:
    """Directory of the model that the demo serves, as the unit names it."""
    return lab.node(
        "systemctl cat plumbline-serving.service | sed -n 's/^model_path=//p; s/^# model_path=//p' | head -1"
    ) or lab.node("ls -d /opt/plumbline/models/*/*/ | head -1").rstrip("/")


def damaged(lab: Lab, model: str, how: str) -> dict[str, object]:
    """Make a damaged checkpoint on the node and return the variables that name it."""
    target = f"/var/tmp/damaged-{how}"
    lab.node(f"/opt/plumbline/engines/current/bin/python - {model} {target} {how} <<'END'\n{DAMAGE}\nEND")
    digest = lab.node(f"cd {target} && {DIGEST}").split()[0]
    return {
        "model_name": f"damaged-{how}",
        "model_source": target,
        "model_source_remote": True,
        "model_source_sha256": digest,
    }


@pytest.mark.parametrize("how", ["tied", "zero"])
def test_a_checkpoint_that_loads_and_is_nonsense_is_refused_before_it_serves(lab: Lab, model: str, how: str) -> None:
    try:
        outcome = lab.playbook(PLAYBOOK, *extra(**damaged(lab, model, how)))
        outcome.refused_with("what the model knows of a known text", "every token is equally likely", "does not serve")
        made = lab.node(f"ls -d /opt/plumbline/models/damaged-{how}/*/").rstrip("/")
        verdict = lab.node(f"/opt/plumbline/bin/plumbline-verify-model {made}; echo status $?")
        assert "expected an approval" in verdict
        assert "status 1" in verdict
        # The model that passed is still the one that serves.
        assert lab.node("systemctl is-active plumbline-serving.service") == "active"
    finally:
        lab.node(f"rm -rf /var/tmp/damaged-{how} /opt/plumbline/models/damaged-{how}")


def test_one_flipped_byte_is_refused_by_the_stage_and_before_every_start(lab: Lab, model: str) -> None:
    shard = lab.node(f"ls {model}/*.safetensors | head -1")
    flip = (
        f"python3 -c \"import sys; f=open('{shard}','r+b'); f.seek(-99,2); b=f.read(1); "
        'f.seek(-99,2); f.write(bytes([b[0]^1])); f.close()"'
    )
    lab.node(flip)
    try:
        lab.playbook(PLAYBOOK).refused_with(shard, "expected the SHA-256", "remove")
        command = lab.node("systemctl show -p ExecStartPre plumbline-serving.service")
        program = re.search(r"argv\[\]=(.*?plumbline-verify-model.*?) ;", command)
        assert program, command
        verdict = lab.node(f"{program[1]}; echo status $?")
        assert "expected the SHA-256" in verdict
        assert "status 1" in verdict
    finally:
        lab.node(flip)
    outcome = lab.playbook(PLAYBOOK)
    assert outcome.returncode == 0, outcome.output[-3000:]
    assert outcome.recap()["changed"] == 0


def test_a_wrong_sha256_of_the_source(lab: Lab) -> None:
    outcome = lab.playbook(PLAYBOOK, *extra(model_name="wrong", model_source_sha256="ab" * 32))
    outcome.refused_with("expected the SHA-256 " + "ab" * 32, "model_source_sha256")
    assert lab.node("ls -d /opt/plumbline/models/wrong /opt/plumbline/models/.staging/* 2>/dev/null", check=False) == ""


def test_a_truncated_source(lab: Lab) -> None:
    lab.node("printf GGUF > /var/tmp/short.gguf")
    digest = lab.node("sha256sum /var/tmp/short.gguf").split()[0]
    values = {
        "model_source": "/var/tmp/short.gguf",
        "model_source_remote": True,
        "model_source_sha256": digest,
        "model_name": "short",
    }
    try:
        lab.playbook(PLAYBOOK, *extra(**values)).refused_with("short.gguf is truncated")
    finally:
        lab.node("rm -rf /var/tmp/short.gguf /opt/plumbline/models/short")


def test_a_full_disk(lab: Lab) -> None:
    lab.node("mkdir -p /var/tmp/small && mount -t tmpfs -o size=150m tmpfs /var/tmp/small")
    try:
        outcome = lab.playbook(PLAYBOOK, *extra(model_root="/var/tmp/small/models"))
        outcome.refused_with("bytes free at /var/tmp/small/models", "model_root")
        assert lab.node("find /var/tmp/small -type f") == ""
    finally:
        lab.node("umount /var/tmp/small && rmdir /var/tmp/small")


def test_an_engine_that_this_machine_cannot_run(lab: Lab) -> None:
    outcome = lab.playbook(
        "playbooks/engine.yml", *extra(engine_kind="cuda", engine_python_executable="/usr/bin/python3")
    )
    outcome.refused_with("needs the NVIDIA driver", "engine_kind: cpu")


def test_an_option_that_the_engine_does_not_know_is_refused_before_anything_serves(lab: Lab) -> None:
    active = lab.node("readlink /opt/plumbline/engines/current")
    outcome = lab.playbook("playbooks/engine.yml", *extra(serving_options={"enforce_eager": True, "no_such_option": 3}))
    outcome.refused_with("unrecognized arguments: --no-such-option", "it stays as it was and nothing was switched")
    assert lab.node("readlink /opt/plumbline/engines/current") == active


def test_an_approval_is_revoked_when_the_rules_become_stricter(lab: Lab, model: str) -> None:
    strict = {"model_information": {"warn": 0.99, "fail": 0.98}}
    try:
        outcome = lab.playbook(PLAYBOOK, *extra(gates_rules_overrides=strict))
        outcome.refused_with("what the model knows of a known text", "does not serve")
        assert "status 1" in lab.node(f"/opt/plumbline/bin/plumbline-verify-model {model}; echo status $?")
    finally:
        again = lab.playbook(PLAYBOOK)
    assert again.returncode == 0, again.output[-3000:]
    assert "status 0" in lab.node(f"/opt/plumbline/bin/plumbline-verify-model {model}; echo status $?")
