#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: the NVIDIA driver of a node beside the one that is wanted."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver_info
short_description: Observe a node's NVIDIA driver, compare it with a wish, and measure its health
description:
  - Finds the GPUs on the PCI bus, so it needs no driver. Reads the loaded module, the module of the kernel that boots next, packages,
    module options, Secure Boot, C(nvidia-smi -q -x) (schemas v10 to v13) and the Xids in the kernel log of this boot.
  - Without any option it needs no wish and measures the health of the GPUs of any machine - driver, ECC, repairs, infoROM, Xids, GPUs that
    the driver lost, NVLink and its errors, the fabric of NVSwitches, PCIe replays.
  - Says what differs from the wish, what forbids to go on, and what to give to the package manager. Changes nothing.
author:
  - The Plumbline founders
options:
  packages:
    description: Packages that make up the driver. The first one carries the driver's version.
    type: list
    elements: str
    default: []
  version:
    description: The wanted version (V(535.261.03)) or branch (V(535)), quoted. Empty takes any.
    type: raw
    default: ""
  module_options:
    description:
      - Options of the driver's kernel module, each checked against C(modinfo -p) of the module that is built for the next kernel.
        V(null) leaves one alone.
    type: dict
    default: {}
  hold:
    description: Whether the packages are to be held, so that an unattended upgrade does not replace them under a loaded module.
    type: bool
    default: true
  cuda_version:
    description: The CUDA release that the engine was built for, quoted. Empty checks nothing.
    type: raw
    default: ""
  can_install:
    description: Whether the caller can install a driver on this distribution.
    type: bool
    default: true
  distribution:
    description: Name of the distribution, for messages.
    type: str
    default: this distribution
  package_manager:
    description: How the distribution installs packages.
    type: str
    choices: [apt, dnf]
    default: apt
  packages_open:
    description:
      - Packages in place of O(packages) where the GPUs run on open kernel modules. In both lists C({branch}) stands for the branch
        of O(version).
    type: list
    elements: str
    default: []
  kernel_modules:
    description:
      - The kind of kernel modules. V(auto) takes the open ones for Turing and newer, known by their PCI device ids, and keeps the
        other kind where it is installed and works.
    type: str
    choices: [auto, open, proprietary]
    default: auto
  fabric_manager:
    description: Whether the fabric manager is wanted. V(auto) wants it where there are NVSwitches on the PCI bus.
    type: str
    choices: [auto, always, never]
    default: auto
  fabric_packages:
    description: Names that its package may have, best first; the first one that can be had is taken, in the driver's version.
    type: list
    elements: str
    default: []
  source_file:
    description: File that tells the package manager of a further source.
    type: str
    default: ""
  source_content:
    description: What O(source_file) is to hold. Empty means that there is no further source.
    type: str
    default: ""
  power_limit_watts:
    description: Power limit of every GPU, in W. V(0) leaves it alone.
    type: float
    default: 0
  compute_mode:
    description: Compute mode of every GPU. Empty leaves it alone.
    type: str
    choices: ["", default, exclusive_process, prohibited]
    default: ""
  ecc:
    description: Whether the GPUs' memory is to correct errors. Empty leaves it alone. A change needs a restart.
    type: str
    choices: ["", enabled, disabled]
    default: ""
  container:
    description:
      - Whether the node is a container. It is given some of the GPUs that its PCI bus shows, and cannot read its host's kernel log, so
        neither is held against it.
    type: bool
    default: false
  root:
    description: Directory that stands for C(/). Below another one no command runs.
    type: path
    default: /
extends_documentation_fragment:
  - plumbline.plumbline.observes
"""

EXAMPLES = r"""
- name: The driver is known
  plumbline.plumbline.gpu_driver_info:
    packages: [nvidia-kernel-dkms, nvidia-smi]
    version: "535"
    module_options: {NVreg_EnablePCIERelaxedOrderingMode: 1}
  register: driver

- name: The GPUs of any machine are healthy
  plumbline.plumbline.gpu_driver_info:
  register: health

- name: Nothing forbids to go on
  ansible.builtin.assert:
    that: driver.problems | length == 0
    fail_msg: "{{ driver.problems | join('; ') }}"
"""

RETURN = r"""
seen:
  description:
    - What the node says. C(gpus) and C(nvswitches) (PCI addresses), C(gpu_devices) (their device ids), C(fabric_manager) (its version),
      C(services), C(running_kernel), C(next_kernel), C(loaded_version),
      C(loaded_open), C(loaded_parameters), C(module_name), C(module_file), C(module_version), C(module_signer),
      C(module_parameters) (V(null) when they could not be asked for), C(packages), C(available), C(headers_installed),
      C(secure_boot) (V(enabled), V(disabled), V(unsupported), V(unknown)), C(nouveau_loaded).
  returned: always
  type: dict
  sample: {gpus: ["0000:17:00.0"], loaded_version: 535.261.03, module_name: nvidia-current, secure_boot: disabled}
differences:
  description:
    - What differs from the wish, out of V(packages), V(source), V(module), V(hold), V(services), V(modprobe), V(initramfs), V(modes),
      V(ecc).
  returned: always
  type: list
  elements: str
  sample: [modprobe, initramfs]
problems:
  description: Sentences, each of which forbids to go on.
  returned: always
  type: list
  elements: str
  sample: []
left_alone:
  description: Whether a driver from elsewhere runs in the wanted version, so that no package is touched.
  returned: always
  type: bool
  sample: false
install:
  description: What to give to the package manager.
  returned: always
  type: list
  elements: str
  sample: [nvidia-kernel-dkms=535.261.03-1, nvidia-smi=535.261.03-1]
packages:
  description: The packages of this node's driver, the fabric manager's included.
  returned: always
  type: list
  elements: str
  sample: [nvidia-kernel-open-dkms, nvidia-driver-cuda]
kernel_modules:
  description: The kind of kernel modules that was chosen; empty where the inventory names the packages itself.
  returned: always
  type: str
  sample: open
hold_command:
  description: What keeps the packages at their version.
  returned: always
  type: list
  elements: str
  sample: [apt-mark, hold, nvidia-smi]
initramfs_command:
  description: What makes the initramfs of the next kernel anew.
  returned: always
  type: list
  elements: str
  sample: [update-initramfs, -u, -k, 6.1.0-27-amd64]
services_off:
  description: Services of the driver that do not start with the machine and should.
  returned: always
  type: list
  elements: str
  sample: []
mode_unit:
  description: Path of the unit that sets power limit and compute mode after every boot.
  returned: always
  type: str
  sample: /etc/systemd/system/plumbline-gpu-modes.service
mode_unit_content:
  description: What it should hold; empty when there should be none.
  returned: always
  type: str
  sample: ""
mode_commands:
  description: Commands to run once, for ECC, and for what an earlier run set and nobody wishes any more.
  returned: always
  type: list
  elements: list
  sample: [[nvidia-smi, -i, "0000:17:00.0", -e, "1"]]
ecc_waits:
  description: Whether the wished ECC mode is not in force.
  returned: always
  type: bool
  sample: false
modprobe_file:
  description: Path of the file for modprobe.
  returned: always
  type: str
  sample: /etc/modprobe.d/95-plumbline-nvidia.conf
modprobe_content:
  description: What it should hold; empty when there should be none.
  returned: always
  type: str
  sample: "blacklist nouveau\n"
restart_due:
  description: Whether the module or its options were written after the machine booted, or another ECC mode is wished than is in force.
  returned: always
  type: bool
  sample: false
smi:
  description:
    - C(driver_version), C(cuda_version), C(schema), C(warnings) and C(gpus); V(null) when nvidia-smi does not answer. Units are in
      the names; what a GPU does not tell is V(null).
  returned: always
  type: dict
  sample: {driver_version: 535.261.03, cuda_version: "12.2", schema: 12, warnings: [], gpus: []}
smi_problem:
  description: One sentence why nvidia-smi does not answer.
  returned: always
  type: str
  sample: ""
xids:
  description: Errors since boot, with C(address), C(code), C(count), C(application), C(switch), C(meaning), C(first).
  returned: always
  type: list
  elements: dict
  sample: []
measurements:
  description: Measurements for the gate, one C(gpu_driver) that is skipped on a node without an NVIDIA device.
  returned: always
  type: list
  elements: dict
  sample: [{name: gpu_driver, scope: nvidia-smi, value: true, expected: true}]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.distribution_packages import APT, DNF
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_driver import (
    ask_driver,
    kernel_log,
    observe,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_driver_measurements import (
    absent,
    measurements,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_driver_plan import DriverWish, make_plan
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_modes import COMPUTE_MODES, ECC_MODES
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_packages import asked_packages, resolve
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvlink_health import (
    ask_links,
    link_measurements,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree

ARGUMENT_SPEC: dict[str, Any] = {
    "packages": {"type": "list", "elements": "str", "default": []},
    "version": {"type": "raw", "default": ""},
    "module_options": {"type": "dict", "default": {}},
    "hold": {"type": "bool", "default": True},
    "cuda_version": {"type": "raw", "default": ""},
    "can_install": {"type": "bool", "default": True},
    "distribution": {"type": "str", "default": "this distribution"},
    "package_manager": {"type": "str", "choices": [APT, DNF], "default": APT},
    "packages_open": {"type": "list", "elements": "str", "default": []},
    "kernel_modules": {"type": "str", "choices": ["auto", "open", "proprietary"], "default": "auto"},
    "fabric_manager": {"type": "str", "choices": ["auto", "always", "never"], "default": "auto"},
    "fabric_packages": {"type": "list", "elements": "str", "default": []},
    "source_file": {"type": "str", "default": ""},
    "source_content": {"type": "str", "default": ""},
    "power_limit_watts": {"type": "float", "default": 0},
    "compute_mode": {"type": "str", "choices": ["", *COMPUTE_MODES], "default": ""},
    "ecc": {"type": "str", "choices": ["", *ECC_MODES], "default": ""},
    "container": {"type": "bool", "default": False},
    "root": {"type": "path", "default": "/"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    tree = Tree(params["root"])
    problem = tree.problem()
    for name in ("version", "cuda_version"):
        value = params[name]
        if isinstance(value, float):
            problem = (
                f"{name}: expected a version in quotes, found the number {value}: quote it (12.10 unquoted is 12.1)"
            )
    if problem:
        module.fail_json(msg=problem)

    def run(command: list[str]) -> tuple[int, str, str]:
        binary = module.get_bin_path(command[0])
        if binary is None:
            return 127, "", f"{command[0]} is not installed"
        status, out, err = module.run_command([binary, *command[1:]], environ_update={"LC_ALL": "C.UTF-8"})
        return int(status), str(out), str(err)

    runner = run if tree.is_live else None
    wish = DriverWish(
        packages=params["packages"],
        version=str(params["version"] or ""),
        hold=params["hold"],
        module_options=params["module_options"] or {},
        cuda_version=str(params["cuda_version"] or ""),
        can_install=params["can_install"],
        distribution=params["distribution"],
        container=params["container"],
        manager=params["package_manager"],
        **{name: params[name] for name in ("packages_open", "kernel_modules", "fabric_manager", "fabric_packages")},
        **{name: params[name] for name in ("source_file", "source_content")},
        **{name: params[name] for name in ("power_limit_watts", "compute_mode", "ecc")},
    )
    seen = observe(tree, runner, asked_packages(wish), wish.manager, wish.fabric_manager)
    wish = resolve(seen, wish)
    answer = ask_driver(runner)
    plan = make_plan(tree, seen, wish, answer["smi"])
    log = kernel_log(runner)
    measured = measurements(seen, answer, log, wish) if seen["gpus"] else absent("no NVIDIA device on the PCI bus")
    if answer["smi"]:
        measured += link_measurements(answer["smi"], ask_links(runner), seen["nvswitches"], tree.uptime_seconds())
    module.exit_json(changed=False, seen=seen, xids=log[0], measurements=measured, **plan, **answer)


if __name__ == "__main__":
    main()
