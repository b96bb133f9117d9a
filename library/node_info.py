#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: what a machine says of itself."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_info
short_description: Observe the operating system, processors, NUMA nodes and container of a machine
description:
  - Reads C(/proc) and C(/sys) only; needs no package on the target and changes nothing.
  - What the machine does not say is V(null) or empty, never guessed.
author:
  - The Plumbline founders
options:
  root:
    description: Directory that stands for C(/). A captured tree gives the facts of the machine it was taken from.
    type: path
    default: /
extends_documentation_fragment:
  - plumbline.plumbline.observes
"""

EXAMPLES = r"""
- name: The machine is known
  plumbline.plumbline.node_info:
  register: __survey_node_info

- name: A captured machine is known
  plumbline.plumbline.node_info:
    root: /srv/captured/node7
"""

RETURN = r"""
system:
  description: Name of the kernel.
  returned: always
  type: str
  sample: Linux
hostname:
  description: The kernel's host name.
  returned: always
  type: str
  sample: gpu-07
architecture:
  description: The kernel's machine name.
  returned: always
  type: str
  sample: x86_64
python_version:
  description: Version of the Python that runs the modules.
  returned: always
  type: str
  sample: 3.11.2
distribution:
  description: C(ID) of os-release, lower case.
  returned: always
  type: str
  sample: debian
distribution_version:
  description: C(VERSION_ID) of os-release.
  returned: always
  type: str
  sample: "12"
kernel_release:
  description: Release of the running kernel.
  returned: always
  type: str
  sample: 6.1.0-27-amd64
kernel_cmdline:
  description: Command line of the running kernel.
  returned: always
  type: str
  sample: BOOT_IMAGE=/vmlinuz-6.1.0-27-amd64 root=UUID=0 ro quiet
init:
  description: Name of PID 1.
  returned: always
  type: str
  sample: systemd
container:
  description: Whether this is a container.
  returned: always
  type: bool
  sample: false
container_type:
  description: The kind of container as C(systemd-detect-virt) names it, V(null) outside one.
  returned: always
  type: str
  sample: podman
hypervisor:
  description: The hypervisor below, V(vm-other) when only the CPU tells of one, V(null) on bare metal.
  returned: always
  type: str
  sample: kvm
virtualization:
  description: RV(container_type), else RV(hypervisor), else V(none).
  returned: always
  type: str
  sample: none
boot_identity:
  description: >-
    Boot id of the kernel and start time of PID 1 (clock ticks since boot), joined with a colon. Changes with every
    restart of the machine, and with every restart of a container.
  returned: always
  type: str
  sample: 6f3c1c1e-6b1b-4d3b-8d6c-0a4f0e9d2b11:2
cpu:
  description: >-
    C(model), C(sockets), C(cores) (physical), C(threads) (online), C(allowed) (CPUs this process may use, as the
    kernel writes a list), C(allowed_count), C(flags).
  returned: always
  type: dict
  sample:
    {model: AMD EPYC 9654, sockets: 2, cores: 192, threads: 384, allowed: 0-383, allowed_count: 384, flags: [avx512f]}
numa_nodes:
  description: >-
    A list with C(node) (number), C(cpus) (kernel form), C(cpu_count), C(memory_total_bytes), C(memory_free_bytes) and
    C(distances) (to each node, 10 is local). Always at least one.
  returned: always
  type: list
  elements: dict
  sample:
    - node: 0
      cpus: 0-95
      cpu_count: 96
      memory_total_bytes: 811748818944
      memory_free_bytes: 790273982464
      distances: [10, 32]
memory_total_bytes:
  description: Memory that the kernel manages.
  returned: always
  type: int
  sample: 1623497637888
memory_limit_bytes:
  description: Limit of the control group mounted at C(/sys/fs/cgroup), V(null) without one.
  returned: always
  type: int
  sample: 8589934592
cgroup_version:
  description: V(1), V(2) or V(hybrid) by what is mounted at C(/sys/fs/cgroup), V(null) when nothing is.
  returned: always
  type: raw
  sample: 2
gpus:
  description: PCI addresses of the NVIDIA VGA and 3D controllers.
  returned: always
  type: list
  elements: str
  sample: ["0000:1b:00.0"]
effective_user_id:
  description: User that the modules run as, 0 for root; V(null) for a captured tree.
  returned: always
  type: int
  sample: 0
dmi:
  description: >-
    What anybody may read of the firmware's strings - C(manufacturer), C(product_name), C(serial_number) (root only), C(bios_vendor),
    C(bios_version), C(bios_date), C(board_manufacturer), C(board_name), V(null) where there is none.
  returned: always
  type: dict
  sample: {manufacturer: Supermicro, product_name: SYS-821GE-TNHR, bios_version: "1.4"}
device_names:
  description: >-
    By PCI address, what the kernel knows of a GPU, NIC or NVMe drive - C(name), C(interfaces) (C(name), C(state), C(bits_per_second)
    of the network) and C(size_bytes) (of a drive's namespaces).
  returned: always
  type: dict
  sample: {"0000:1b:00.0": {name: NVIDIA H100 80GB HBM3, interfaces: [], size_bytes: null}}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.node import node_facts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree


def main() -> None:
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    problem = Tree(module.params["root"]).problem()
    if problem:
        module.fail_json(msg=problem)
    module.exit_json(changed=False, **node_facts(module.params["root"]))


if __name__ == "__main__":
    main()
