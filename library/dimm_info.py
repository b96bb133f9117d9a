#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: DIMMs, channels and sockets of a machine."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dimm_info
short_description: Observe DIMMs, memory channels and sockets, and compute the DRAM bandwidth that they allow
description:
  - Parses the SMBIOS tables in C(/sys/firmware/dmi/tables) (types 0, 1, 2, 4, 16, 17, 19 and 20; entry points 2.1 and
    3.x) and reads the error counters in C(/sys/devices/system/edac). Needs neither C(dmidecode) nor any package on the
    target, and changes nothing.
  - SMBIOS has no field for the channel of a slot. It follows from the names that vendors give their slots; where no rule
    knows them the channels are V(null), and O(channels_per_socket) can tell.
  - The tables can be read by root only. A cut or corrupt table gives what can be read, and RV(notes) says what is missing.
author:
  - The Plumbline founders
options:
  root:
    description: Directory that stands for C(/). A captured tree gives the facts of the machine it was taken from.
    type: path
    default: /
  channels_per_socket:
    description: Memory channels of a socket, for a machine whose slot names do not tell. V(0) leaves it to the table.
    type: int
    default: 0
extends_documentation_fragment:
  - plumbline.plumbline.observes
"""

EXAMPLES = r"""
- name: The DIMMs are known
  plumbline.plumbline.dimm_info:
  become: true
  register: __survey_dimm_info

- name: Every channel has its DIMM, and every DIMM runs as rated
  plumbline.plumbline.gate:
    measurements: "{{ __survey_dimm_info.measurements }}"
"""

RETURN = r"""
available:
  description: Whether there is a table that describes memory. A container has none.
  returned: always
  type: bool
  sample: true
reason:
  description: Why not, when RV(available) is false.
  returned: always
  type: str
  sample: ""
table_present:
  description: Whether there is a table at all, be it unreadable or corrupt.
  returned: always
  type: bool
  sample: true
notes:
  description: What is missing or doubtful, a sentence each.
  returned: always
  type: list
  elements: str
  sample: []
incomplete:
  description: What makes the table incomplete (cut, corrupt), empty when it is whole. Of an incomplete one no DIMM is said to be missing.
  returned: always
  type: str
  sample: ""
smbios_version:
  description: Version that the entry point tells, V(null) without one.
  returned: always
  type: str
  sample: "3.3"
bios:
  description: C(vendor), C(version) and C(release_date) of the firmware (type 0), or V(null).
  returned: always
  type: dict
  sample: {vendor: American Megatrends Inc., version: "1.4", release_date: 07/04/2023}
system:
  description: >-
    C(manufacturer), C(product_name), C(version), C(serial_number), C(sku) and C(family) (type 1), or V(null).
  returned: always
  type: dict
  sample: {manufacturer: Supermicro, product_name: SYS-821GE-TNHR}
boards:
  description: C(manufacturer), C(product_name), C(version) and C(serial_number) of each board (type 2).
  returned: always
  type: list
  elements: dict
  sample: []
processors:
  description: >-
    C(socket), C(model), C(populated), C(enabled), C(cores), C(cores_enabled), C(threads), C(max_speed_mhz) and
    C(current_speed_mhz) of each processor socket (type 4).
  returned: always
  type: list
  elements: dict
  sample: []
memory_arrays:
  description: >-
    C(slots), C(error_correction), C(maximum_capacity_bytes) and C(system_memory) of each array of slots (type 16).
  returned: always
  type: list
  elements: dict
  sample: []
mappings:
  description: C(start_bytes), C(end_bytes) and C(devices_per_row) of each range of addresses (type 19).
  returned: always
  type: list
  elements: dict
  sample: []
dimms:
  description:
    - Each slot (type 17), empty ones too.
    - C(locator), C(bank_locator), C(socket) (from 0), C(channel) (as the board names it), C(slot) (in the channel, from
      1), C(channel_source) (how the channel was found), C(populated), C(size_bytes), C(type), C(form_factor), C(technology), C(rank),
      C(total_width_bits), C(data_width_bits), C(ecc), C(speed_mts) (rated), C(configured_speed_mts),
      C(configured_voltage_volts), C(minimum_voltage_volts), C(maximum_voltage_volts), C(manufacturer), C(part_number),
      C(serial_number), C(mapped_start_bytes) (type 20).
  returned: always
  type: list
  elements: dict
  sample: []
other_memory:
  description: >-
    Memory that fills no DIMM slot, each with C(where) (V(HBM) in the processor's package, V(CXL)), C(locator), C(type), C(size_bytes).
  returned: always
  type: list
  elements: dict
  sample: []
soldered:
  description: Whether the memory is soldered (LPDDR, chips), so that there are no slots and no channel can be empty.
  returned: always
  type: bool
  sample: false
hypervisor:
  description: The hypervisor that made the table up, V(null) on bare metal. Its DIMMs are then not judged, and no limit follows from them.
  returned: always
  type: str
  sample: null
kernel_memory_bytes:
  description: What the kernel manages (C(MemTotal)), V(null) where it does not tell.
  returned: always
  type: int
  sample: 540000000000
sockets:
  description:
    - Each processor socket that has slots, but for one without a processor.
    - C(socket), C(label) (the vendor's), C(processor), C(slots), C(dimms), C(memory_bytes), C(channels),
      C(channels_populated), C(channel_names), C(empty_channels), C(channel_source), C(dimms_per_channel) (list of the
      counts that occur), C(channel_bytes_smallest), C(channel_bytes_largest), C(configured_speed_mts) (of the slowest
      DIMM), C(channel_bandwidth_bytes_per_second), C(bandwidth_bytes_per_second) (limit as populated),
      C(bandwidth_full_bytes_per_second) (with every channel populated alike), C(bandwidth_source).
  returned: always
  type: list
  elements: dict
  sample: []
memory_bytes:
  description: Sum of the modules.
  returned: when available
  type: int
  sample: 549755813888
bandwidth_bytes_per_second:
  description: >-
    Limit of the node's DRAM bandwidth as populated - channels x configured MT/s x 8 bytes; V(null) where channels or
    speeds are unknown.
  returned: always
  type: float
  sample: 614400000000.0
bandwidth_full_bytes_per_second:
  description: The same, were every channel populated.
  returned: always
  type: float
  sample: 614400000000.0
bandwidth_source:
  description: How RV(bandwidth_bytes_per_second) came about.
  returned: always
  type: str
  sample: 2 sockets x 8 channels x 4800 MT/s x 8 B (SMBIOS)
edac:
  description: >-
    C(available), C(reason) and C(controllers), each with C(name), C(driver), C(correctable) and C(uncorrectable) (counts
    since C(seconds) ago), C(correctable_without_place) and C(uncorrectable_without_place) (the part of them that the hardware could not
    place), and C(dimms), those with errors (C(label), C(location), C(correctable), C(uncorrectable)).
  returned: always
  type: dict
  sample: {available: true, reason: "", controllers: []}
measurements:
  description: >-
    For the action M(plumbline.plumbline.gate) - V(dimm_population), V(dimm_balance), V(dimm_configured_speed),
    V(dimm_ecc), V(memory_visible), V(dram_bandwidth_limit), V(edac_uncorrectable_errors) and V(edac_correctable_errors).
  returned: always
  type: list
  elements: dict
  sample:
    - name: dimm_population
      scope: socket0
      value: 8
      unit: channels
      limit: 8
      limit_source: slots in the SMBIOS table, channels by bank locator
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.dimm_measurements import dimm_measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.dimms import dimm_facts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree

# More than any server processor has.
_CHANNELS_MAX = 32


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "channels_per_socket": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    tree = Tree(module.params["root"])
    problem = tree.problem()
    channels = module.params["channels_per_socket"]
    if not 0 <= channels <= _CHANNELS_MAX:
        problem = f"channels_per_socket: expected 0 to {_CHANNELS_MAX}, found {channels}: 0 leaves it to the table"
    if problem:
        module.fail_json(msg=problem)
    facts = dimm_facts(tree.root, channels)
    module.exit_json(changed=False, measurements=dimm_measurements(facts), **facts)


if __name__ == "__main__":
    main()
