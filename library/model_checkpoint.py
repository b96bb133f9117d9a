#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: a model that the engine can serve, with a manifest of every byte."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_checkpoint
short_description: Make a servable model from a checkpoint
description:
  - Turns a GGUF file or a directory in Hugging Face's layout into a directory of safetensors, and writes a manifest with SHA-256, size,
    shape and dtype of everything in it.
  - The weights of a directory are safetensors (taken over byte for byte), one safetensors file cut into pieces
    (C(NAME.safetensors00), C(NAME.safetensors01), ...), or files of C(torch.save) (C(pytorch_model*.bin)). Their pickles are read and
    never run; one that names anything but tensors is refused.
  - Records how likely the source itself finds a known text (transformers, float32), against which the served model is judged later.
  - The model is made aside and put in place by one rename. Weights are streamed past the page cache in pieces of some megabytes, whatever
    their size; a conversion that was killed goes on where it was, at most 512 MB before.
  - Weights that are not finite, a tensor that an index names and no file has, and shapes that contradict C(config.json) are refused.
  - A model in place is checked file by file on every run; one that changed is refused, never repaired in silence.
author:
  - The Plumbline founders
options:
  root:
    description: Directory of all models.
    type: path
    required: true
  name:
    description: Name of the model.
    type: str
    required: true
  source:
    description: GGUF file or directory, on the target.
    type: path
    required: true
  source_sha256:
    description:
      - SHA-256 of the GGUF file. Of a directory, the SHA-256 over the lines C(SHA256  NAME) of its weights and of the files that are
        taken over with them, in the order of their names. It is taken while the source is read for the conversion.
    type: str
    required: true
  source_required:
    description: Whether a missing source is an error. V(false) reports it in RV(source_needed).
    type: bool
    default: true
  remove_source:
    description: Remove the source, a copy, once the model is in place or was refused.
    type: bool
    default: false
  format:
    description: What the source is. V(safetensors) stands for any directory in Hugging Face's layout, whatever holds its weights.
    type: str
    choices: [gguf, safetensors]
    required: true
  dtype:
    description: Type of the weights that a GGUF file is written in. Those of a directory keep their own; the engine casts them.
    type: str
    choices: [float32, bfloat16, float16]
    required: true
  text:
    description: The known text.
    type: str
    required: true
  engine_python:
    description: Python of the engine, which has what the conversion needs.
    type: path
    required: true
  timeout_seconds:
    description: Limit for each step, in seconds.
    type: int
    default: 3600
  quantise:
    description: How its weights are quantised. Left out, they are not.
    type: dict
    suboptions:
      method:
        description:
          - V(rtn-w4a16) and V(rtn-w8a16) round to the nearest while the weights are streamed. V(awq-w4a16) lets llmcompressor scale them
            first, which loads the model and takes hours for a large one.
        type: str
        choices: [rtn-w4a16, rtn-w8a16, awq-w4a16]
        required: true
      group_size:
        description: Inputs that share a scale.
        type: int
        choices: [32, 64, 128]
        default: 128
      calibration_file:
        description: Text for V(awq-w4a16), on the target; plain, or JSON lines with a field C(text) (C(.jsonl)).
        type: str
        default: ""
      calibration_sha256:
        description: Its SHA-256.
        type: str
        default: ""
      samples:
        description: Pieces of that text.
        type: int
        default: 64
      length:
        description: Tokens of a piece.
        type: int
        default: 512
      grid:
        description: Strengths of the scaling that are tried for each weight.
        type: int
        default: 20
      python:
        description: Python of the quantiser's environment, made by M(plumbline.plumbline.model_quantiser).
        type: str
        default: ""
      timeout_seconds:
        description: Limit for V(awq-w4a16), in seconds.
        type: int
        default: 14400
      reference:
        description:
          - What computes how likely the source finds the known text. V(transformers) takes float32 and six bytes a parameter. V(engine)
            loads the source as it would be served, and tells how many tokens its key/value cache would hold.
        type: str
        choices: [transformers, engine]
        default: transformers
      environment:
        description: Environment variables for V(engine).
        type: dict
        default: {}
attributes:
  check_mode:
    description: Says whether a model would be made, and checks one that is in place.
    support: full
  diff_mode:
    description: Shows the revision before and after.
    support: full
"""

EXAMPLES = r"""
- name: The model is in place
  plumbline.plumbline.model_checkpoint:
    root: /opt/plumbline/models
    name: SmolLM2-135M-Instruct
    source: /srv/models/SmolLM2-135M-Instruct.Q4_1.gguf
    source_sha256: "{{ model_source_sha256 }}"
    format: gguf
    dtype: float32
    text: "{{ lookup('ansible.builtin.file', 'likelihood.txt') }}"
    engine_python: /opt/plumbline/engines/current/bin/python
  register: __model_checkpoint
"""

RETURN = r"""
path:
  description: Directory of the model.
  returned: always
  type: str
  sample: /opt/plumbline/models/SmolLM2-135M-Instruct/0a1b2c3d4e5f
revision:
  description: Names the model's bytes and what they are judged by.
  returned: always
  type: str
  sample: 0a1b2c3d4e5f
present:
  description: Whether the model is in place.
  returned: always
  type: bool
  sample: true
source_needed:
  description: Whether the source is missing and needed.
  returned: always
  type: bool
  sample: false
manifest_sha256:
  description: SHA-256 of the manifest, empty while there is none.
  returned: always
  type: str
  sample: 9f8e7d6c5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a39281706f5e4d3c2b1a0
size_bytes:
  description: Size of the model in bytes, 0 while there is none.
  returned: always
  type: int
  sample: 541721600
free_bytes:
  description: Free disk at O(root), in bytes.
  returned: always
  type: int
  sample: 81604378624
"""

import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

# Carried to the node because they are named here; they run in the engine's Python.
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (  # noqa: F401
    likelihood_reference,
    likelihood_yuan,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_store import (
    Wish,
    install,
    installed,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_fitness import free_bytes
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantise_wish import Quantise

_QUANTISE = {
    "method": {"type": "str", "choices": ["rtn-w4a16", "rtn-w8a16", "awq-w4a16"], "required": True},
    "group_size": {"type": "int", "choices": [32, 64, 128], "default": 128},
    "calibration_file": {"type": "str", "default": ""},
    "calibration_sha256": {"type": "str", "default": ""},
    "samples": {"type": "int", "default": 64},
    "length": {"type": "int", "default": 512},
    "grid": {"type": "int", "default": 20},
    "python": {"type": "str", "default": ""},
    "timeout_seconds": {"type": "int", "default": 14400},
    "reference": {"type": "str", "choices": ["transformers", "engine"], "default": "transformers"},
    "environment": {"type": "dict", "default": {}},
}


def _finish(module: AnsibleModule, remove: bool, source: Path) -> None:
    """Remove the copy of the source, also after a failure: one that was refused is of no use."""
    if not remove or module.check_mode:
        return
    if source.is_dir():
        shutil.rmtree(source, ignore_errors=True)
    else:
        source.unlink(missing_ok=True)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "source": {"type": "path", "required": True},
            "source_sha256": {"type": "str", "required": True},
            "source_required": {"type": "bool", "default": True},
            "remove_source": {"type": "bool", "default": False},
            "format": {"type": "str", "choices": ["gguf", "safetensors"], "required": True},
            "dtype": {"type": "str", "choices": ["float32", "bfloat16", "float16"], "required": True},
            "text": {"type": "str", "required": True},
            "engine_python": {"type": "path", "required": True},
            "timeout_seconds": {"type": "int", "default": 3600},
            "quantise": {"type": "dict", "options": _QUANTISE},
        },
        supports_check_mode=True,
    )
    given = dict(module.params)
    required, remove = given.pop("source_required"), given.pop("remove_source")
    given.update(root=Path(given["root"]), source=Path(given["source"]))
    quantise = given.pop("quantise")
    try:
        if quantise:
            quantise["group"] = quantise.pop("group_size")
            quantise["environment"] = {name: str(value) for name, value in quantise["environment"].items()}
        wish = Wish(**given, quantise=Quantise(**quantise) if quantise else None)
        found = installed(wish)
        missing = found is None and not wish.source.exists()
        if missing and required and not module.check_mode:
            raise CheckpointError(
                f"The source of the model, {wish.source}: expected it on the node, found nothing; look at model_source."
            )
        changed = found is None and not missing
        if changed and not module.check_mode:
            found = install(wish)
    except CheckpointError as error:
        _finish(module, remove, given["source"])
        module.fail_json(msg=str(error))
    except OSError as error:
        _finish(module, remove, given["source"])
        module.fail_json(
            msg=f"The model {given['name']} could not be made or read ({error}): look at the file system of {given['root']}."
        )
    _finish(module, remove, given["source"])
    manifest, manifest_sha256 = found or ({"files": {}}, "")
    module.exit_json(
        changed=changed or (missing and module.check_mode and required),
        path=str(wish.path),
        revision=wish.revision,
        present=found is not None,
        source_needed=missing,
        manifest_sha256=manifest_sha256,
        size_bytes=sum(entry["bytes"] for entry in manifest["files"].values()),
        free_bytes=free_bytes(str(wish.root)),
        diff={
            "before": "" if changed or missing else f"{wish.name} {wish.revision}\n",
            "after": f"{wish.name} {wish.revision}\n",
        },
    )


if __name__ == "__main__":
    main()
