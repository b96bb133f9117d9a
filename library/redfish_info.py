#!/usr/bin/python
"""Observe a machine through its BMC (Ansible module)."""

from __future__ import annotations

DOCUMENTATION = r"""
module: redfish_info
short_description: Observe a machine through its BMC
description:
  - Reads the system, its BIOS attributes (applied and pending), DIMMs, PCIe devices and firmware over Redfish.
  - Has one form for all vendors; units are in the names.
version_added: 0.1.0
extends_documentation_fragment:
  - plumbline.plumbline.redfish
options:
  gather:
    description: Which parts to read. Each DIMM and each device costs one request at BMCs that cannot expand collections.
    type: list
    elements: str
    choices: [bios, memory, pcie, firmware]
    default: [bios, memory, pcie, firmware]
attributes:
  check_mode:
    description: Reads only.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
author:
  - The Plumbline founders
seealso:
  - module: plumbline.plumbline.redfish_bios
  - module: plumbline.plumbline.bmc_sensors_info
"""

EXAMPLES = r"""
- name: The machine is known through its BMC
  plumbline.plumbline.redfish_info:
    base_url: https://10.0.0.7
    username: admin
    password: "{{ bmc_password }}"
    ca_file: /etc/ssl/certs/bmc-ca.pem
  delegate_to: localhost
  register: machine

- name: The names of its BIOS attributes are shown
  ansible.builtin.debug:
    msg: "{{ machine.bios.attributes.keys() | sort }}"
"""

RETURN = r"""
available:
  description: Always V(true); C(survey_bmc) has V(false) where no BMC is set.
  returned: success
  type: bool
reason:
  description: Always empty; says why in C(survey_bmc) where nothing is available.
  returned: success
  type: str
service:
  description: Redfish version, vendor and product of the service root.
  returned: success
  type: dict
  sample: {redfish_version: 1.18.1, vendor: IEIT, product: NF8260G7}
system:
  description: >-
    The computer system: C(id), C(uri), C(manufacturer), C(model), C(sku), C(serial_number), C(host_name), C(power_state),
    C(boot_state) (BootProgress), C(health), C(bios_version), C(processors), C(processor_model), C(memory_total_bytes),
    and C(bmc) with C(id), C(model), C(firmware_version), C(health).
  returned: success
  type: dict
  sample: {manufacturer: IEIT, model: NF8260G7, power_state: 'On', bios_version: 05.10.00}
bios:
  description: >-
    C(attributes) (applied values by name, without parents), C(attribute_count), C(pending) (staged values that differ),
    C(registry) (id of the attribute registry, empty without one), C(settings_uri), C(reset_to_defaults_pending), and C(reason)
    (what is missing, and why; empty where nothing is).
  returned: with C(bios) in O(gather)
  type: dict
  sample: {attribute_count: 38, registry: BiosAttributeRegistry.1.0.0, pending: {}, attributes: {TurboMode: Enabled}}
memory:
  description: >-
    DIMM slots: C(id), C(locator), C(present), C(capacity_bytes), C(type), C(configured_mts), C(rated_mts),
    C(data_width_bits), C(rank_count), C(manufacturer), C(part_number), C(serial_number), C(socket), C(controller), C(channel),
    C(slot), C(state), C(health).
  returned: with C(memory) in O(gather)
  type: list
  elements: dict
pcie_devices:
  description: >-
    C(id), C(name), C(manufacturer), C(model), C(part_number), C(device_type), C(firmware_version), C(pcie_type) (present),
    C(max_pcie_type), C(lanes) (present), C(max_lanes), C(state), C(health).
  returned: with C(pcie) in O(gather)
  type: list
  elements: dict
firmware:
  description: C(id), C(name), C(version), C(updateable), C(health), C(source).
  returned: with C(firmware) in O(gather)
  type: list
  elements: dict
  sample: [{id: BIOS, name: BIOS, version: 05.10.00, updateable: true, health: OK, source: /redfish/v1/UpdateService}]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import redfish_inventory as inventory
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import redfish_module
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_resource import NoBiosError, read_bios
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_client import RedfishClient

PARTS = ["bios", "memory", "pcie", "firmware"]


def observe(client: RedfishClient, gather: list[str], system_id: str) -> dict[str, Any]:
    system = client.system(system_id)
    found: dict[str, Any] = {
        "changed": False,
        "available": True,
        "reason": "",
        "service": {
            "redfish_version": str(client.root.get("RedfishVersion") or ""),
            "vendor": str(client.root.get("Vendor") or ""),
            "product": str(client.root.get("Product") or ""),
        },
        "system": inventory.system_summary(client, system),
    }
    if "bios" in gather:
        found["bios"] = observe_bios(client, system_id)
    if "memory" in gather:
        found["memory"] = inventory.memory_modules(client, system)
    if "pcie" in gather:
        found["pcie_devices"] = inventory.pcie_devices(client, system)
    if "firmware" in gather:
        found["firmware"] = inventory.firmware_components(client, system)
    return found


def observe_bios(client: RedfishClient, system_id: str) -> dict[str, Any]:
    try:
        bios = read_bios(client, system_id)
    except NoBiosError as error:
        return {"attributes": {}, "attribute_count": 0, "pending": {}, "registry": "", "reason": str(error)}
    return {
        "attributes": bios.state.applied,
        "attribute_count": len(bios.state.applied),
        "pending": bios.state.pending,
        "registry": bios.state.registry.id if bios.state.registry else "",
        "settings_uri": bios.settings_uri,
        "reset_to_defaults_pending": bios.reset_to_defaults,
        "reason": "; ".join(bios.warnings),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **redfish_module.CONNECTION,
            "gather": {"type": "list", "elements": "str", "choices": PARTS, "default": PARTS},
        },
        supports_check_mode=True,
    )
    redfish_module.run(module, lambda client: observe(client, module.params["gather"], module.params["system_id"]))


if __name__ == "__main__":
    main()
