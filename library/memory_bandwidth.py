#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: measured memory bandwidth."""

from __future__ import annotations

DOCUMENTATION = r"""
module: memory_bandwidth
short_description: Measure the memory bandwidth of each NUMA node, of the whole node, and between NUMA nodes
description:
  - Runs a small C kernel with OpenMP - read, copy and triad, with non-temporal stores, over arrays of at least four times
    the last-level caches - on one pinned thread for each core that this process may use. Each thread writes its part of
    the arrays first, so that they lie in the memory beside it.
  - The kernel is built on the target by its own C(gcc -O3 -march=native -fopenmp) and kept in O(cache_directory); it is
    built again only for another source, compiler or processor.
  - Bytes are counted as STREAM does. With non-temporal stores that is what the memory moves; where the processor has
    none, C(conditions) says that it moves more.
  - Loads all cores and takes the memory's whole bandwidth while it runs, about 10 seconds for each NUMA node. What
    serves requests meanwhile becomes slow.
author:
  - The Plumbline founders
options:
  dimm:
    description:
      - What M(plumbline.plumbline.dimm_info) returned. Gives each measurement its limit.
      - Without it, or where it knows none, measurements have no limit.
    type: dict
    default: {}
  repetitions:
    description: >-
      So many passes of the kernels must go by without a figure that is 1 % better, so a noisy machine is measured for
      longer than a quiet one.
    type: int
    default: 20
  seconds_per_node:
    description: >-
      How long measuring may take at most for each NUMA node, building aside. Three passes of each kernel are always made.
    type: float
    default: 10
  matrix:
    description: Whether to measure reads between NUMA nodes, too.
    type: bool
    default: true
  cache_directory:
    description: >-
      Where the built kernel is kept. The default is C(/var/cache/plumbline) for root and C(~/.cache/plumbline) for others; where that is
      read-only or mounted noexec, C(/tmp/plumbline-UID) at last.
    type: path
  compiler:
    description: The C compiler, by name or path.
    type: str
    default: gcc
attributes:
  check_mode:
    description: In check mode nothing is built and nothing measured; the measurement is skipped with the reason.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
"""

EXAMPLES = r"""
- name: The memory bandwidth is known
  plumbline.plumbline.memory_bandwidth:
    dimm: "{{ survey_dimm }}"
  register: __accept_memory

- name: The memory bandwidth is what its DIMMs allow
  plumbline.plumbline.gate:
    measurements: "{{ __accept_memory.measurements }}"
"""

RETURN = r"""
measurements:
  description:
    - For the action M(plumbline.plumbline.gate), in B/s, best of the passes, with each pass in C(samples) (100 at most).
    - V(host_memory_bandwidth) (triad), V(host_memory_read_bandwidth) and V(host_memory_copy_bandwidth) with the scopes
      V(node) and V(numa0), V(numa1)...; V(numa_memory_bandwidth) with the scopes V(cpus of 0, memory of 1)....
    - C(conditions) state the kernel, processors, threads, array size, how bytes are counted, where the pages lay, the
      compiler, the load average before, and in C(notes) what was not as it should be.
  returned: always
  type: list
  elements: dict
  sample:
    - name: host_memory_bandwidth
      scope: numa0
      value: 163200000000
      unit: B/s
      statistic: best of 20
      limit: 204800000000.0
      limit_source: 8 channels x 3200 MT/s x 8 B (SMBIOS)
      samples: [163200000000, 162900000000]
      conditions: {kernel: triad, threads: 32, array_over_cache: 4.0}
program:
  description: Path of the built kernel.
  returned: when measured
  type: str
  sample: /var/cache/plumbline/membw-1f2e3d4c5b6a7988-march-native
built:
  description: Compiler and options.
  returned: when measured
  type: str
  sample: gcc (Debian 12.2.0-14) 12.2.0, -O3 -march=native
seconds:
  description: How long it took, building included.
  returned: when measured
  type: float
  sample: 8.4
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import memory_bandwidth as memory

_REPETITIONS_MAX = 900
_SECONDS_MAX = 3600


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "dimm": {"type": "dict", "default": {}},
            "repetitions": {"type": "int", "default": 20},
            "seconds_per_node": {"type": "float", "default": 10},
            "matrix": {"type": "bool", "default": True},
            "cache_directory": {"type": "path"},
            "compiler": {"type": "str", "default": "gcc"},
        },
        supports_check_mode=True,
    )
    options = module.params
    if not 1 <= options["repetitions"] <= _REPETITIONS_MAX:
        module.fail_json(
            msg=f"repetitions: expected 1 to {_REPETITIONS_MAX}, found {options['repetitions']}: correct it"
        )
    if not 0 < options["seconds_per_node"] <= _SECONDS_MAX:
        module.fail_json(
            msg=f"seconds_per_node: expected more than 0 and up to {_SECONDS_MAX}, found {options['seconds_per_node']}: correct it"
        )
    if module.check_mode:
        reason = "check mode: the measurement would load the machine, so it was not made"
        module.exit_json(changed=False, measurements=memory.skipped(reason))
    try:
        found = memory.measure(
            options["dimm"],
            repetitions=options["repetitions"],
            seconds_per_node=options["seconds_per_node"],
            matrix=options["matrix"],
            cache=options["cache_directory"] or memory.default_cache(),
            compiler=options["compiler"],
        )
    except memory.BuildError as error:
        found = {"measurements": memory.failed(str(error))}
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
