#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: how fast a model's directory can be read."""

from __future__ import annotations

DOCUMENTATION = r"""
module: storage_bandwidth
short_description: Measure sequential reads of a directory with fio
description:
  - Reads the largest file of O(path) with fio, sequentially, in blocks of 1 MiB and with direct I/O, so that the page cache does not
    flatter the figure. Nothing is written.
  - From the figure and the size of the directory follows the time to load the checkpoint, RV(load_seconds).
  - Measures, never judges.
author:
  - The Plumbline founders
options:
  path:
    description: Directory of the model.
    type: path
    required: true
  runtime_seconds:
    description: Seconds of reading.
    type: float
    default: 5
  jobs:
    description: Processes that read, each its own part of the file.
    type: int
    default: 4
  queue_depth:
    description: Reads in flight for each process.
    type: int
    default: 8
attributes:
  check_mode:
    description: In check mode nothing is measured, and the one measurement is skipped with that reason.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
"""

EXAMPLES = r"""
- name: The time to load the checkpoint is known before it is loaded
  plumbline.plumbline.storage_bandwidth:
    path: "{{ model_path }}"
  register: __accept_storage_bandwidth
"""

RETURN = r"""
measurements:
  description: One measurement for the gate, C(storage_read_bandwidth), in bytes per second.
  returned: always
  type: list
  elements: dict
directory_bytes:
  description: Size of the files of at least 1 MiB in the directory, in bytes.
  returned: when the directory could be read
  type: int
  sample: 269060552
load_seconds:
  description: RV(directory_bytes) over the measured bandwidth, in seconds; what it takes at least to load the checkpoint from this storage.
  returned: when a bandwidth was measured
  type: float
  sample: 0.14
"""

import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import storage_bandwidth


def read(module: AnsibleModule, path: Path, files: list[tuple[Path, int]]) -> dict[str, Any]:
    """Run fio on the largest file and return the measurement."""
    scope = str(path)
    fio = module.get_bin_path("fio")
    if fio is None:
        return storage_bandwidth.error("expected the program fio, found none on PATH: install the package fio", scope)
    runtime, jobs, depth = (module.params[key] for key in ("runtime_seconds", "jobs", "queue_depth"))
    largest, size = files[0]
    jobs = max(1, min(jobs, size // storage_bandwidth.BLOCK_BYTES))
    try:
        result = subprocess.run(
            storage_bandwidth.command(fio, largest, runtime, jobs, depth),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=runtime + 60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return storage_bandwidth.error(f"fio had not finished {runtime + 60:g} s after its start and was ended", scope)
    conditions = {
        "file": str(largest),
        "file_bytes": size,
        "jobs": jobs,
        "queue_depth": depth,
        "block_bytes": storage_bandwidth.BLOCK_BYTES,
    }
    return storage_bandwidth.measurement(result.stdout, result.stderr, scope, conditions)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "runtime_seconds": {"type": "float", "default": 5},
            "jobs": {"type": "int", "default": 4},
            "queue_depth": {"type": "int", "default": 8},
        },
        supports_check_mode=True,
    )
    path = Path(module.params["path"])
    if min(module.params[key] for key in ("runtime_seconds", "jobs", "queue_depth")) <= 0:
        module.fail_json(msg="expected runtime_seconds, jobs and queue_depth above zero: correct them")
    if module.check_mode:
        skipped = {"name": storage_bandwidth.NAME, "scope": str(path), "skipped": "check mode: nothing is measured"}
        module.exit_json(changed=False, measurements=[skipped])
    files = storage_bandwidth.files_to_read(path)
    if not files:
        reason = f"expected a file of at least 1 MiB below {path}, found none: give the directory of the model"
        module.exit_json(changed=False, measurements=[storage_bandwidth.error(reason, str(path))])
    found = read(module, path, files)
    facts: dict[str, Any] = {"directory_bytes": sum(size for _, size in files)}
    if found.get("value"):
        facts["load_seconds"] = facts["directory_bytes"] / found["value"]
    module.exit_json(changed=False, measurements=[found], **facts)


if __name__ == "__main__":
    main()
