#!/usr/bin/python
"""Read firmware versions from a BMC and set them beside their floors (Ansible module)."""

from __future__ import annotations

DOCUMENTATION = r"""
module: redfish_firmware_info
short_description: Read firmware versions through the BMC
description:
  - Lists the components of the firmware inventory; BIOS and BMC are taken from their own resources where the inventory lacks them.
  - >-
    With O(floors), returns one measurement for each component that has one, for the gate (rule C(version_at_least)).
    A component that does not exist, or whose version has no known order to its floor, is a measurement with an error.
  - Updates nothing.
version_added: 0.1.0
extends_documentation_fragment:
  - plumbline.plumbline.redfish
options:
  floors:
    description: >-
      Component to lowest acceptable version. A component is named by its C(Id), its C(Name), or a pattern with C(*);
      capitals do not count.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Reads only.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
author:
  - The Plumbline founders
"""

EXAMPLES = r"""
- name: The firmware versions are known
  plumbline.plumbline.redfish_firmware_info:
    base_url: https://10.0.0.7
    username: admin
    password: "{{ bmc_password }}"
    floors:
      BIOS: "05.10.00"
      GPU*: "96.00.5E.00.01"
  delegate_to: localhost
  register: firmware

- name: They are not older than their floors
  plumbline.plumbline.gate:
    measurements: "{{ firmware.measurements }}"
"""

RETURN = r"""
components:
  description: C(id), C(name), C(version), C(updateable), C(health), C(source).
  returned: success
  type: list
  elements: dict
  sample: [{id: BMC, name: BMC, version: 1.35.05, updateable: true, health: OK, source: /redfish/v1/UpdateService}]
measurements:
  description: One C(firmware_version) for each component with a floor.
  returned: success
  type: list
  elements: dict
  sample: [{name: firmware_version, scope: BIOS, value: 05.10.00, expected: 05.10.00}]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import redfish_module
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.firmware_floors import floor_measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_client import Json, RedfishClient
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_inventory import (
    firmware_components,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={**redfish_module.CONNECTION, "floors": {"type": "dict", "default": {}}},
        supports_check_mode=True,
    )

    def work(client: RedfishClient) -> Json:
        components = firmware_components(client, client.system(module.params["system_id"]))
        return {
            "changed": False,
            "components": components,
            "measurements": floor_measurements(components, module.params["floors"]),
        }

    redfish_module.run(module, work)


if __name__ == "__main__":
    main()
