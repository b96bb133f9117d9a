#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: a kernel as a dictionary says it should be."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_settings
short_description: Make a kernel's settings what a dictionary says, now and after every restart
description:
  - Takes the whole wish in one call. Checks all of it against the machine first; then writes the live values, reads them back,
    writes the files that keep them over a restart, and stages kernel arguments. When anything is refused, everything is put back.
  - What an earlier call set and this wish no longer holds is given back to what it was before (recorded in
    C(/var/lib/plumbline/kernel_settings.json)).
  - In a container nothing that belongs to the host is written, whatever rights the container has. Such settings come back as
    V(skipped) with the reason. Only C(net.*) keys of a network namespace of its own are applied there.
  - Files of its own are C(/etc/sysctl.d/95-plumbline.conf), C(/etc/tmpfiles.d/95-plumbline.conf),
    C(plumbline-kernel-settings.service) (applies both once more late in the boot),
    C(/etc/security/limits.d/95-plumbline.conf), C(/etc/default/grub.d/95-plumbline.cfg), C(plumbline.slice) and those that the
    options below name. Where there is no GRUB drop-in but boot loader entries, C(grubby) edits those.
author:
  - The Plumbline founders
options:
  settings:
    description:
      - The wish. A setting that is absent or V(null) is left alone.
      - Values are numbers or words. YAML makes booleans of unquoted C(on), C(off), C(yes) and C(no); those are refused.
    type: dict
    required: true
    suboptions:
      sysctl:
        description:
          - Keys and values, as in sysctl.d(5). A key that the kernel does not have is refused, with the nearest one it has. A key
            with a C(-) in front is skipped instead.
        type: dict
      numa_balancing:
        description: C(kernel.numa_balancing), skipped where the kernel was built without it.
        type: raw
      transparent_hugepage:
        description: C(enabled), C(defrag) and C(shmem_enabled) below C(/sys/kernel/mm/transparent_hugepage).
        type: dict
      cpu:
        description:
          - C(intel_pstate) (V(active), V(passive), V(off)) and C(amd_pstate) (V(active), V(passive), V(guided), V(disable)), the
            mode of that CPU frequency driver.
          - C(governor) and C(energy_performance_preference) of every cpufreq policy; C(resume_latency_us), the longest time in
            microseconds that a CPU may take to leave a C-state (PM QoS, V(0) sets no limit).
        type: dict
      uncore:
        description: C(minimum_khz) and C(maximum_khz) of every package, by the driver intel_uncore_frequency.
        type: dict
      pcie_aspm_policy:
        description: Policy of PCIe active state power management.
        type: raw
      limits:
        description:
          - C(nofile) (number of open files) and C(memlock) (KiB, or V(unlimited)) for sessions of all users and of root. A
            systemd service has limits of its own (C(LimitNOFILE), C(LimitMEMLOCK)).
        type: dict
      arguments:
        description:
          - Kernel arguments, in order, behind everybody else's. Those left out later are removed; others' are not touched.
        type: list
        elements: raw
      minimum_version:
        description:
          - The oldest kernel that will do, a quoted version. When an older one would boot next although a newer one is installed,
            the newer one is made to boot. Nothing is installed; RV(boot) says what should be.
        type: raw
      cgroup_version:
        description: The cgroup layout that should be mounted, V(1) or V(2). Only measured.
        type: raw
      boot:
        description:
          - C(release), the kernel that should boot next and always, as C(uname -r) prints it; C(hold) (V(true) or V(false)), whether
            the packages of the kernel that boots are held, together with every metapackage that could bring another one.
          - Held by C(apt-mark) on Debian and Ubuntu, by lines in C(/etc/dnf/plugins/versionlock.list) on Enterprise Linux.
        type: dict
      hold_back:
        description:
          - Beginnings of the names of packages that no unattended upgrade may move. Kept in C(/etc/apt/apt.conf.d/95-plumbline.conf),
            read back through C(apt-config); on Enterprise Linux in C(excludepkgs) of C(/etc/dnf/automatic.conf), beside others' words.
        type: list
        elements: raw
      slice:
        description:
          - C(plumbline.slice), for the engine. C(housekeeping_cpus) (a list of CPUs) or C(housekeeping_cores_per_node) (the first
            cores of every NUMA node with their threads) stay outside it; C(numa_nodes) (V(all), or a list) it may use;
            C(memory_max) (V(64G), V(95%)) is its limit; C(confine_system) (bool) keeps everything else on the housekeeping CPUs.
          - Set through systemd on cgroup v2, read back from C(/sys/fs/cgroup).
        type: dict
      irqbalance:
        description:
          - C(enabled) (bool), V(false) masks it; C(banned_cpus), the CPUs that get no interrupts (a list, or V(slice)).
        type: dict
      tuned:
        description:
          - What to do where tuned is enabled. V(refuse) names what its profile sets to other values; V(profile) makes a profile
            C(plumbline) on top of the site's and activates it. V(null) only warns.
        type: raw
  state:
    description:
      - With V(present) the settings are made so.
      - With V(verified) nothing is written; RV(measurements) holds each setting beside what was wished, for the gate.
    type: str
    choices: [present, verified]
    default: present
  container:
    description:
      - Whether the survey took the node for a container. The module looks for itself as well; either is enough.
    type: bool
    default: false
  root:
    description:
      - Directory that stands for C(/). Below another one no command runs, so of kernel arguments only GRUB's drop-in is made.
    type: path
    default: /
attributes:
  check_mode:
    description: Can tell what would change. What the kernel alone would refuse is not known beforehand.
    support: full
  diff_mode:
    description: Shows live values and files.
    support: full
"""

EXAMPLES = r"""
- name: The kernel is tuned for inference
  plumbline.plumbline.kernel_settings:
    settings:
      sysctl:
        vm.swappiness: 1
        net.core.somaxconn: 4096
      numa_balancing: 0
      transparent_hugepage: {enabled: madvise, defrag: defer+madvise}
      cpu: {governor: performance}
      limits: {nofile: 1048576, memlock: unlimited}
      arguments: [iommu=pt]
      boot: {hold: true}
      hold_back: [linux-image, nvidia-, libnvidia-]
      slice: {housekeeping_cores_per_node: 1, memory_max: 95%}
    container: "{{ survey_node.container }}"
  register: tuned

- name: The settings are measured after the restart
  plumbline.plumbline.kernel_settings:
    settings: "{{ wish }}"
    state: verified
"""

RETURN = r"""
settings:
  description:
    - One entry per setting with C(name), C(state) (V(ok), V(changed), V(skipped) or V(failed)), C(wanted), C(before), C(reason),
      C(restart_required) (bool) and C(persisted_in) (a file, or C(grub) or C(bls)).
  returned: when the wish could be read
  type: list
  elements: dict
  sample:
    - {name: vm.swappiness, state: changed, wanted: "1", before: "60", reason: "", restart_required: false,
       persisted_in: /etc/sysctl.d/95-plumbline.conf}
restart_required:
  description: V(reboot) when a kernel or a kernel argument takes effect with the next restart only, else V(none).
  returned: always
  type: str
  sample: none
boot:
  description:
    - The kernels. C(running), C(installed) (newest first), C(next) (what the boot loader boots), C(wanted) (empty when any will do),
      C(install) (V(minimum), V(release) or V(versionlock), what has to be installed before the wish can be met).
  returned: when the wish could be read
  type: dict
  sample: {running: 6.1.0-27-amd64, installed: [6.1.0-27-amd64], next: 6.1.0-27-amd64, wanted: 6.1.0-27-amd64, install: []}
container:
  description: Why this is taken for a container; empty on a machine of its own.
  returned: always
  type: str
  sample: container (podman)
measurements:
  description: Measurements C(kernel_setting), C(session_limit), C(kernel_version) and C(cgroup_version) for the gate.
  returned: when O(state=verified)
  type: list
  elements: dict
  sample:
    - {name: kernel_setting, scope: vm.swappiness, value: "1", expected: "1", unit: "", statistic: read once}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_knobs import Live
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_measurements import measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_report import differences, report
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_settings import (
    RefusedError,
    apply_plan,
    make_plan,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_wish import KernelError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree

ARGUMENT_SPEC: dict[str, Any] = {
    "settings": {
        "type": "dict",
        "required": True,
        # Raw: as str, Ansible would make the word "True" of a YAML boolean before anybody could object.
        "options": {
            "sysctl": {"type": "dict"},
            "numa_balancing": {"type": "raw"},
            "transparent_hugepage": {"type": "dict"},
            "cpu": {"type": "dict"},
            "uncore": {"type": "dict"},
            "pcie_aspm_policy": {"type": "raw"},
            "limits": {"type": "dict"},
            "arguments": {"type": "list", "elements": "raw"},
            "minimum_version": {"type": "raw"},
            "cgroup_version": {"type": "raw"},
            "boot": {"type": "dict"},
            "hold_back": {"type": "list", "elements": "raw"},
            "slice": {"type": "dict"},
            "irqbalance": {"type": "dict"},
            "tuned": {"type": "raw"},
        },
    },
    "state": {"type": "str", "choices": ["present", "verified"], "default": "present"},
    "container": {"type": "bool", "default": False},
    "root": {"type": "path", "default": "/"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    root = module.params["root"]
    problem = Tree(root).problem()
    if problem:
        module.fail_json(msg=problem)

    def run(command: list[str]) -> tuple[int, str, str]:
        status, out, err = module.run_command(command, environ_update={"LC_ALL": "C.UTF-8"}, handle_exceptions=True)
        return int(status), str(out), str(err)

    runner = run if root == "/" else None
    try:
        plan = make_plan(root, module.params["settings"], module.params["container"], runner)
    except KernelError as error:
        module.fail_json(msg=f"kernel settings: {error}")
        return
    rows = report(plan)
    result: dict[str, Any] = {
        "changed": False,
        "settings": rows,
        "restart_required": "reboot" if any(row["restart_required"] for row in rows) else "none",
        "container": plan.container,
        "boot": plan.boot.told(),
    }
    for warning in plan.warnings:
        module.warn(warning)
    if module.params["state"] == "verified":
        module.exit_json(**result, measurements=measurements(plan))
    # What must be installed first is installed by others; a dry run foretells it.
    result["changed"] = plan.is_changed or (module.check_mode and bool(plan.boot.install))
    if module._diff:
        result["diff"] = differences(plan)
    if not module.check_mode:
        try:
            apply_plan(plan, Live(plan.tree), runner)
        except RefusedError as error:
            module.fail_json(msg=f"kernel settings: {error}", settings=report(plan, error), container=plan.container)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
