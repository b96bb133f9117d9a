#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: the PCIe tree of a machine."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pcie_info
short_description: Observe every PCIe function, the links between them, and the way of each device to its root port
description:
  - Parses the configuration spaces in C(/sys/bus/pci/devices) and reads the files beside them. Needs neither C(lspci)
    nor any package on the target, and changes nothing.
  - A link is judged by what B(both) of its ends can do, so a Gen4 drive in a Gen5 bay is not slow.
  - Linux shows a user without root the first 64 bytes of a configuration space only. What lies behind is then V(null),
    RV(notes) says so, and the state of links comes from the kernel's own files.
author:
  - The Plumbline founders
options:
  root:
    description: Directory that stands for C(/). A captured tree gives the facts of the machine it was taken from.
    type: path
    default: /
  functions:
    description:
      - Which functions to return in RV(functions). RV(links), RV(devices) and RV(measurements) always cover the machine.
      - V(devices) are GPUs, NICs, NVMe drives and the bridges above them; a large server has 500 functions in V(all).
    type: str
    choices: [all, devices, none]
    default: all
  expected_devices:
    description:
      - How many devices of a kind (V(gpu), V(nic), V(nvme)) there should be; a card with several functions counts once. A device that was
        gone before the boot leaves no other trace.
    type: dict
    default: {}
extends_documentation_fragment:
  - plumbline.plumbline.observes
"""

EXAMPLES = r"""
- name: The links are known
  plumbline.plumbline.pcie_info:
    functions: devices
    expected_devices: {gpu: 8, nvme: 8}
  become: true
  register: __survey_pcie_info

- name: The links are what both their ends can do
  plumbline.plumbline.gate:
    measurements: "{{ __survey_pcie_info.measurements }}"
"""

RETURN = r"""
available:
  description: Whether there is any PCI function.
  returned: always
  type: bool
  sample: true
reason:
  description: Why not, when RV(available) is false.
  returned: always
  type: str
  sample: ""
notes:
  description: What could not be read, and what to do about it; a sentence each.
  returned: always
  type: list
  elements: str
  sample: []
functions:
  description:
    - The functions that O(functions) asks for, in order of address. What a function has not, or what cannot be read, is
      V(null).
    - C(address), C(kind) (V(gpu), V(nic), V(nvme), V(bridge), V(display) or V(null)), C(vendor_id), C(device_id),
      C(class_code) (hexadecimal text), C(driver), C(numa_node), C(slot) (name of the physical slot), C(slot_number) (of a
      port), C(slot_occupied) and C(slot_powered) (what the port's slot senses),
      C(port_type), C(physical_function) (of a virtual function), C(parent) (the bridge above), C(path) (all
      bridges up to the root port), C(responsive) (false when the configuration space reads all ones),
      C(readable_bytes) (of the configuration space).
    - C(link) is the function's own end of its link - C(speed_gts), C(width), C(max_speed_gts), C(max_width),
      C(supported_speeds_gts), C(target_speed_gts), C(aspm_supported), C(aspm_enabled), C(active), C(training),
      C(disabled), C(bandwidth_managed), C(bandwidth_autonomous), C(flit), C(retimers) (0 to 2), C(port_number), C(offset) and C(source)
      (V(config) or V(sysfs)). C(other_links) holds a second link capability where a device has two. Virtual functions and
      integrated endpoints have none.
    - C(max_payload_bytes), C(max_payload_supported_bytes), C(max_read_request_bytes), C(acs) (C(supported) and
      C(enabled)), C(aer) (counters since boot - C(correctable), C(nonfatal), C(fatal), each with C(total) and the errors
      that are not zero), C(aer_status) (errors latched in the registers).
  returned: always
  type: list
  elements: dict
  sample: []
links:
  description:
    - The links, in order of the lower end.
    - C(port) and C(device) (upper and lower end; a port that a virtual machine does not show is V(null)),
      C(functions) (all functions of the lower end), C(slot), C(numa_node),
      C(speed_gts) and C(width) (now), C(max_speed_gts) and C(max_width) (what both ends can do), C(device_max_speed_gts),
      C(device_max_width), C(port_max_speed_gts), C(port_max_width), C(target_speed_gts) (of the port), C(flit),
      C(bandwidth_bytes_per_second) and C(limit_bytes_per_second) (one direction, headers included), C(devices_below)
      (GPUs, NICs and NVMe drives that use it).
  returned: always
  type: list
  elements: dict
  sample: []
devices:
  description:
    - GPUs, NICs and NVMe drives (no virtual functions), in order of address.
    - C(address), C(kind), C(responsive), C(driver), C(numa_node), C(slot), C(root_port), C(hops) (the lower end of each
      link on the way up), C(narrowest_hop) and C(bandwidth_bytes_per_second) (the slowest link now), C(limit_hop) and
      C(limit_bytes_per_second) (the slowest by capability), C(shared_with) (devices that use a part of the same way).
  returned: always
  type: list
  elements: dict
  sample: []
measurements:
  description: >-
    For the action M(plumbline.plumbline.gate) - V(pcie_link_width), V(pcie_link_speed), V(pcie_link_speed_unloaded),
    V(pcie_uncorrectable_errors), V(pcie_correctable_errors), V(pcie_payload_mismatches), V(pcie_peer_detours),
    V(pcie_untrained_slots), V(pcie_device_count) and V(pcie_bandwidth_limit).
  returned: always
  type: list
  elements: dict
  sample:
    - name: pcie_link_speed
      scope: "0000:19:00.0"
      value: 32.0
      unit: GT/s
      limit: 32.0
      limit_source: what both ends of the link can do
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.pci_checks import COUNTED_KINDS
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.pci_measurements import pcie_measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.pci_topology import pci_facts, readable
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree

# The most devices that PCIe's bus numbers leave room for.
_DEVICES_MAX = 256


def _wrong_expectation(expected: dict[str, object]) -> str | None:
    """One sentence when a kind is unknown or its number is none; a number may come as text from a template."""
    for kind, number in expected.items():
        if kind not in COUNTED_KINDS:
            return f"expected_devices: expected the kinds {', '.join(COUNTED_KINDS)}, found {kind!r}: correct the name"
        text = str(number)
        if (
            isinstance(number, bool)
            or not (text.isascii() and text.isdigit())
            or len(text) > 3
            or int(text) > _DEVICES_MAX
        ):
            return f"expected_devices: expected 0 to {_DEVICES_MAX} for {kind}, found {number!r}: give the number of devices"
    return None


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "functions": {"type": "str", "choices": ["all", "devices", "none"], "default": "all"},
            "expected_devices": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    tree = Tree(module.params["root"])
    expected = module.params["expected_devices"] or {}
    problem = tree.problem() or _wrong_expectation(expected)
    if problem:
        module.fail_json(msg=problem)
    facts = pci_facts(tree.root)
    measurements = pcie_measurements(
        facts, tree.uptime_seconds(), {kind: int(number) for kind, number in expected.items()}
    )
    facts.pop("root_remedy", None)
    facts["functions"] = readable(facts, module.params["functions"])
    module.exit_json(changed=False, measurements=measurements, **facts)


if __name__ == "__main__":
    main()
