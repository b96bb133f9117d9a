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
  - From the figure and the size of the directory follows the least time that loading the checkpoint takes, C(checkpoint_load_seconds).
  - Where the file lies on NVMe drives, also through partitions, RAID and device mapper, their PCIe links are read while fio reads, and the
    limit is what these links together can carry. On other storage (virtio, SATA, NFS) that part is skipped with the reason.
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
  description:
    - C(storage_read_bandwidth) in bytes per second and C(checkpoint_load_seconds) in seconds.
    - C(pcie_link_speed_under_load) (GT/s) and C(pcie_link_width_under_load) (lanes) of each NVMe drive, or skipped with the reason.
  returned: always
  type: list
  elements: dict
directory_bytes:
  description: Size of the files of at least 1 MiB in the directory, in bytes.
  returned: when the directory could be read
  type: int
  sample: 269060552
drives:
  description: Names of the drives at the bottom of what the largest file lies on.
  returned: when the directory could be read
  type: list
  elements: str
  sample: [nvme0n1, nvme1n1]
load_seconds:
  description: RV(directory_bytes) over the measured bandwidth, in seconds; what it takes at least to load the checkpoint from this storage.
  returned: when a bandwidth was measured
  type: float
  sample: 0.14
"""

import math
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import storage_bandwidth as storage
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.block_devices import Backing, backing
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.link_load import LinkFacts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.pci_topology import pci_facts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.probe import run_group
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.probe_support import LinkSampler
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree

_SLACK_SECONDS = 60


def read(
    module: AnsibleModule, path: Path, files: list[tuple[Path, int]], below: Backing, links: LinkFacts
) -> list[dict[str, Any]]:
    """Run fio on the largest file, with the links of its drives sampled meanwhile, and return the measurements."""
    scope = str(path)
    fio = module.get_bin_path("fio")
    if fio is None:
        return [storage.error("expected the program fio, found none on PATH: install the package fio", scope)]
    runtime, jobs, depth = (module.params[key] for key in ("runtime_seconds", "jobs", "queue_depth"))
    largest, size = files[0]
    jobs = max(1, min(jobs, size // storage.BLOCK_BYTES))
    sampler = LinkSampler([step for address in below.addresses for step in links.path(address)])
    with sampler.running():
        done = run_group(storage.command(fio, files[0], runtime, jobs, depth), runtime + _SLACK_SECONDS)
    if done.problem:
        return [storage.error(done.problem, scope)]
    conditions = {
        "file": str(largest),
        "file_bytes": size,
        "jobs": jobs,
        "queue_depth": depth,
        "block_bytes": storage.BLOCK_BYTES,
    }
    found = storage.measurement(done.stdout, done.stderr, scope, conditions)
    seen = sampler.summary()
    if "value" in found:
        storage.with_limit(found, below, links, seen)
    return [found, *storage.link_measurements(below, links, seen, scope)]


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
    numbers = [module.params[key] for key in ("runtime_seconds", "jobs", "queue_depth")]
    if not all(value > 0 and math.isfinite(value) for value in numbers):
        found = ", ".join(map(str, numbers))
        module.fail_json(msg=f"expected runtime_seconds, jobs and queue_depth above zero, found {found}: correct them")
    if module.check_mode:
        skipped = {"name": storage.NAME, "scope": str(path), "skipped": "check mode: nothing is measured"}
        module.exit_json(changed=False, measurements=[skipped])
    files = storage.files_to_read(path)
    if not files:
        reason = f"expected a file of at least 1 MiB below {path}, found none: give the directory of the model"
        module.exit_json(changed=False, measurements=[storage.error(reason, str(path))])
    tree = Tree()
    below = backing(str(files[0][0]), tree)
    measurements = read(module, path, files, below, LinkFacts(pci_facts(tree.root)))
    facts: dict[str, Any] = {"directory_bytes": sum(size for _, size in files), "drives": below.names}
    bandwidth = measurements[0].get("value")
    if bandwidth:
        facts["load_seconds"] = facts["directory_bytes"] / bandwidth
        measurements.insert(1, storage.load_measurement(facts["directory_bytes"], bandwidth, str(path)))
    module.exit_json(changed=False, measurements=measurements, **facts)


if __name__ == "__main__":
    main()
