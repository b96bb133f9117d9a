#!/usr/bin/python
"""Read the last lines of a machine's console from its BMC (Ansible module)."""

from __future__ import annotations

DOCUMENTATION = r"""
module: redfish_console_info
short_description: Read the last lines of a machine's console from its BMC
description:
  - Reads the log of the console among the LogServices of the system (OpenBMC's C(HostLogger) and its like), else the log of POST codes.
  - >-
    Redfish has no resource for the text of a console, so many BMCs offer nothing; then RV(reason) says so, and over which
    protocol the console can be watched live.
version_added: 0.1.0
extends_documentation_fragment:
  - plumbline.plumbline.redfish
options:
  lines:
    description: How many lines at most.
    type: int
    default: 20
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
- name: The last words of the machine are known
  plumbline.plumbline.redfish_console_info:
    base_url: https://10.0.0.7
    username: admin
    password: "{{ bmc_password }}"
  delegate_to: localhost
"""

RETURN = r"""
lines:
  description: The last lines, oldest first.
  returned: success
  type: list
  elements: str
  sample: ["Memory training failed: DIMM A3"]
source:
  description: Where they come from.
  returned: success
  type: str
  sample: console log HostLogger
reason:
  description: Why there are none; empty where there are some.
  returned: success
  type: str
  sample: its BMC keeps no log of the console or of POST codes; it can be watched live over SSH on port 2200
power_state:
  description: C(PowerState) of the system.
  returned: success
  type: str
  sample: 'On'
boot_state:
  description: C(BootProgress.LastState); empty where the BMC has none.
  returned: success
  type: str
  sample: MemoryInitializationStarted
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import redfish_module
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_client import Json, RedfishClient
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_console import read_console


def main() -> None:
    module = AnsibleModule(
        argument_spec={**redfish_module.CONNECTION, "lines": {"type": "int", "default": 20}},
        supports_check_mode=True,
    )

    def work(client: RedfishClient) -> Json:
        return {"changed": False, **read_console(client, module.params["system_id"], module.params["lines"])}

    redfish_module.run(module, work)


if __name__ == "__main__":
    main()
