#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: how likely the engine finds a known text with a model, beside how likely the model's source finds it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_likelihood
short_description: Measure the likelihood of a known text in the engine that will serve
description:
  - Loads the model into vLLM itself, in a process of its own without rights, with the very options that will serve, and compares tokens,
    likelihood and most likely tokens of the known text with those of the model's source.
  - A checkpoint can load without an error, answer C(/health) with 200 and still be nonsense. This tells.
  - Where an approval of these bytes, this engine and these options is on record, its measurements are returned and nothing is loaded.
author:
  - The Plumbline founders
options:
  path:
    description: Directory of the model, made by M(plumbline.plumbline.model_checkpoint).
    type: path
    required: true
  text:
    description: The known text that the model was made with.
    type: str
    required: true
  approvals:
    description: Directory of the approvals.
    type: path
    default: /opt/plumbline/approvals
  engine_id:
    description: The engine that will serve.
    type: str
    required: true
  engine_python:
    description: Its Python.
    type: path
    required: true
  options:
    description: Options that will serve and that change what is computed, as strings.
    type: dict
    default: {}
    suboptions:
      dtype:
        description: Type in which the engine computes.
        type: str
      quantization:
        description: Quantisation method.
        type: str
      kv_cache_dtype:
        description: Type of the key/value cache.
        type: str
  environment:
    description: Environment variables for the engine.
    type: dict
    default: {}
  timeout_seconds:
    description: Limit, in seconds.
    type: int
    default: 900
attributes:
  check_mode:
    description: Returns what is on record, else measurements that are skipped with that reason; loads nothing.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
"""

EXAMPLES = r"""
- name: The model's likelihood in the engine is known
  plumbline.plumbline.model_likelihood:
    path: "{{ model_path }}"
    text: "{{ lookup('ansible.builtin.file', 'likelihood.txt') }}"
    engine_id: "{{ engine_id }}"
    engine_python: "{{ engine_python }}"
    options: {dtype: float32}
  register: __model_likelihood
"""

RETURN = r"""
measurements:
  description:
    - C(model_tokenizer), C(model_likelihood), C(model_information) and C(model_agreement), for the gate.
    - Of a quantised model the second and the last bear its format (C(model_likelihood_w4a16)), for their bounds differ, and
      C(model_rounding_error), C(model_weight_fraction) and C(model_cache_tokens) come with them.
  returned: always
  type: list
  elements: dict
  sample:
    - {name: model_likelihood, scope: SmolLM2-135M-Instruct, value: 0.1079, unit: fraction, limit: 0.1079}
recorded:
  description: Whether they were read from an approval and not measured now.
  returned: always
  type: bool
  sample: false
manifest_sha256:
  description: SHA-256 of the manifest of the model that was measured.
  returned: always
  type: str
  sample: 9f8e7d6c5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a39281706f5e4d3c2b1a0
seconds:
  description: How long it took to load and measure, in seconds; 0 for what was recorded.
  returned: always
  type: float
  sample: 48.5
"""

import hashlib
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.likelihood_run import (
    Engine,
    measure,
    skipped,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.manifest import (
    Binding,
    Refused,
    check_files,
    read_manifest,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.model_approval import recorded
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantise_quality import names


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "text": {"type": "str", "required": True},
            "approvals": {"type": "path", "default": "/opt/plumbline/approvals"},
            "engine_id": {"type": "str", "required": True},
            "engine_python": {"type": "path", "required": True},
            "options": {
                "type": "dict",
                "default": {},
                "options": {
                    "dtype": {"type": "str"},
                    "quantization": {"type": "str"},
                    "kv_cache_dtype": {"type": "str"},
                },
            },
            "environment": {"type": "dict", "default": {}},
            "timeout_seconds": {"type": "int", "default": 900},
        },
        supports_check_mode=True,
    )
    given = module.params
    path = Path(given["path"])
    options = {name: value for name, value in given["options"].items() if value}
    environment = {name: str(value) for name, value in given["environment"].items()}
    engine = Engine(given["engine_id"], given["engine_python"], options, environment, given["timeout_seconds"])
    result: dict[str, Any] = {"changed": False, "recorded": False, "manifest_sha256": "", "seconds": 0.0}
    try:
        if module.check_mode and not path.exists():
            module.exit_json(measurements=skipped(path, "check mode: the model is not there yet"), **result)
        manifest, result["manifest_sha256"] = read_manifest(path)
        if manifest["text_sha256"] != hashlib.sha256(given["text"].encode()).hexdigest():
            raise CheckpointError(
                f"The model {path} was made with another known text: run the whole stage model, which makes a revision for this one."
            )
        measured = recorded(Path(given["approvals"]), path, Binding(result["manifest_sha256"], engine.id, options))
        quantised = manifest.get("quantised")
        if measured is not None and {measurement["name"] for measurement in measured} != set(names(quantised)):
            # What an older Plumbline recorded is not all that is judged now.
            measured = None
        result["recorded"] = measured is not None
        if measured is None and module.check_mode:
            measured = skipped(path, "check mode: the model was not loaded", quantised)
        elif measured is None:
            check_files(path, manifest)
            started = time.monotonic()
            measured = measure(path, given["text"], engine, quantised)
            result["seconds"] = round(time.monotonic() - started, 1)
    except (CheckpointError, Refused) as error:
        module.fail_json(msg=str(error))
    except (OSError, ValueError, KeyError) as error:
        module.fail_json(
            msg=f"The likelihood of the model {path} could not be measured ({error}): remove that directory and run the stage model again."
        )
    module.exit_json(measurements=measured, **result)


if __name__ == "__main__":
    main()
