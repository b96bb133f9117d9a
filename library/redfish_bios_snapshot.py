#!/usr/bin/python
"""Read all BIOS attributes of a machine as a document for a file (Ansible module)."""

from __future__ import annotations

DOCUMENTATION = r"""
module: redfish_bios_snapshot
short_description: Read all BIOS attributes of a machine, as a backup or golden file
description:
  - >-
    Reads the applied values of all BIOS attributes with the registry's id, the model, the BIOS version and the time. It changes
    nothing on the machine.
  - Passwords, and what is made of them, are left out; serial numbers and addresses are in it.
  - >-
    M(plumbline.plumbline.redfish_bios) puts such a file on a machine (C(golden_file)), and M(plumbline.plumbline.bios_diff)
    compares it with others.
version_added: 0.1.0
extends_documentation_fragment:
  - plumbline.plumbline.redfish
options:
  dest:
    description:
      - File on the controller that gets the document as JSON, readable by its owner only.
      - It is left as it is where nothing but the time differs.
    type: path
  host:
    description: Name of the machine in the document.
    type: str
    default: ''
attributes:
  check_mode:
    description: Reads everything and predicts whether the file would change.
    support: full
  diff_mode:
    description: Shows the document before and after.
    support: full
author:
  - The Plumbline founders
seealso:
  - module: plumbline.plumbline.redfish_bios
  - module: plumbline.plumbline.bios_diff
"""

EXAMPLES = r"""
- name: The BIOS settings are backed up
  plumbline.plumbline.redfish_bios_snapshot:
    base_url: https://10.0.0.7
    username: admin
    password: "{{ bmc_password }}"
    ca_file: /etc/ssl/certs/bmc-ca.pem
    host: "{{ inventory_hostname }}"
    dest: "backups/{{ inventory_hostname }}.json"
  delegate_to: localhost
"""

RETURN = r"""
attribute_count:
  description: How many attributes the document has.
  returned: success
  type: int
  sample: 300
dest:
  description: The file.
  returned: with O(dest)
  type: str
  sample: backups/node1.json
snapshot:
  description: >-
    The document, with C(attributes), C(display_names), C(read_only), C(left_out) (names without values), C(registry), C(model),
    C(manufacturer), C(bios_version), C(host), C(taken_at) and C(format).
  returned: without O(dest)
  type: dict
  sample: {format: plumbline-bios-1, model: ProLiant DL380a Gen11, attributes: {ProcTurbo: Enabled}}
"""

from datetime import datetime, timezone

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import redfish_module
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_golden import snapshot
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_resource import Json, read_bios
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_client import RedfishClient


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **redfish_module.CONNECTION,
            "dest": {"type": "path"},
            "host": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )

    def work(client: RedfishClient) -> Json:
        bios = read_bios(client, module.params["system_id"])
        taken_at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        document = snapshot(bios.state, bios.system, module.params["host"], taken_at)
        return {
            "changed": False,
            "attribute_count": len(document["attributes"]),
            "snapshot": document,
            "warnings": bios.warnings,
        }

    redfish_module.run(module, work)


if __name__ == "__main__":
    main()
