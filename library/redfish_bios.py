#!/usr/bin/python
"""Stage BIOS settings through the BMC, or read them back (Ansible module)."""

from __future__ import annotations

DOCUMENTATION = r"""
module: redfish_bios
short_description: Stage BIOS settings through the BMC, or read them back
description:
  - Compares desired, applied and pending values, and stages only what differs. They take effect at the next restart.
  - >-
    Validates every name, value and bound against the machine's own attribute registry, and evaluates its C(Dependencies),
    before anything is written. One setting that cannot be refuses the whole request.
  - A pending value that contradicts the desired one is replaced, even where the applied value is right already.
  - Restarts nothing; see RV(restart_required) and M(plumbline.plumbline.redfish_power).
version_added: 0.1.0
extends_documentation_fragment:
  - plumbline.plumbline.redfish
options:
  state:
    description:
      - V(staged) stages what differs.
      - V(verified) reads back and returns RV(measurements) for the gate. It changes nothing and judges nothing.
    type: str
    choices: [staged, verified]
    default: staged
  settings:
    description:
      - >-
        Attribute to value, by the vendor's names. A value is what the registry calls C(ValueName) or C(ValueDisplayName); put
        it in quotes, since YAML reads C(on), C(off), C(yes) and C(no) as booleans.
      - Wins over O(logical) for the same attribute.
    type: dict
    default: {}
  logical:
    description:
      - >-
        Settings by names that are the same for all vendors: C(memory_mode), C(pcie_link_speed), C(c_states), C(p_states),
        C(turbo), C(sriov), C(uncore_frequency), C(workload_profile), C(sub_numa), C(numa), C(above_4g_decoding), C(pcie_aspm),
        C(hyper_threading). The values are in C(docs/bios.md).
      - Known vendors are IEIT (Inspur), Dell, HPE, Lenovo and Supermicro. The live registry decides which attribute is meant.
    type: dict
    default: {}
  unsupported:
    description: What a logical setting that this machine does not offer leads to.
    type: str
    choices: [warn, fail]
    default: warn
  unlock:
    description: >-
      Where another attribute (a power or workload profile) locks a wanted one, whether to change that attribute in the same
      request. With V(false) the request is refused, and the sentence names the attribute to change.
    type: bool
    default: false
  foreign_pending:
    description:
      - What becomes of pending values of attributes that were not asked for. They would become active with the next restart.
      - V(keep) leaves them, with a warning. V(clear) sets them back to what is applied. V(refuse) refuses the request.
      - Values that a wanted profile brings with it (by the registry) do not count.
    type: str
    choices: [keep, clear, refuse]
    default: keep
  require_registry:
    description: >-
      Whether to refuse attributes that the registry does not describe. With V(false), their values are only held against the
      type of the present value.
    type: bool
    default: true
  next_command:
    description: What to run where a setting did not take; goes into the measurements of O(state=verified).
    type: str
    default: ''
attributes:
  check_mode:
    description: Reads and validates everything, and predicts what would be staged.
    support: full
  diff_mode:
    description: Shows applied, pending and desired of every attribute that changes.
    support: full
author:
  - The Plumbline founders
seealso:
  - module: plumbline.plumbline.redfish_power
  - module: plumbline.plumbline.redfish_info
"""

EXAMPLES = r"""
- name: The machine is set for low latency at its next restart
  plumbline.plumbline.redfish_bios:
    base_url: https://10.0.0.7
    username: admin
    password: "{{ bmc_password }}"
    ca_file: /etc/ssl/certs/bmc-ca.pem
    logical:
      turbo: enabled
      c_states: disabled
    settings:
      PatrolScrubDuration: 24
    unlock: true
  delegate_to: localhost
  register: bios

- name: The settings are read back after the restart
  plumbline.plumbline.redfish_bios:
    base_url: https://10.0.0.7
    username: admin
    password: "{{ bmc_password }}"
    logical: {turbo: enabled, c_states: disabled}
    state: verified
  delegate_to: localhost
  register: applied

- name: They are what was asked for
  plumbline.plumbline.gate:
    measurements: "{{ applied.measurements }}"
"""

RETURN = r"""
restart_required:
  description: V(power_cycle) while values wait for a restart (also when an earlier run staged them), else V(none).
  returned: success
  type: str
  sample: power_cycle
settings:
  description: Every wanted attribute with C(desired), C(applied) and C(pending) as they were before this run.
  returned: success
  type: list
  elements: dict
  sample: [{attribute: TurboMode, desired: Enabled, applied: Disabled, pending: null}]
staged:
  description: What was sent (in check mode, what would be), in the BMC's own form.
  returned: with O(state=staged)
  type: dict
  sample: {TurboMode: Enabled}
cleared:
  description: Attributes whose pending value was set back, with O(foreign_pending=clear).
  returned: with O(state=staged)
  type: list
  elements: str
unlocked:
  description: Attributes that were changed to free others, with O(unlock=true).
  returned: with O(state=staged)
  type: dict
  sample: {PowerProfile: CUSTOM}
foreign_pending:
  description: Pending values that were not asked for and are still there.
  returned: success
  type: dict
logical:
  description: Each logical setting with the attributes that it came to.
  returned: success
  type: dict
  sample: {c_states: [C6Enable, PackageCState, ProcessorC1eEnable]}
unsupported:
  description: Each logical setting that the machine does not offer, with the reason.
  returned: success
  type: dict
  sample: {uncore_frequency: no attribute of HPE BIOS is known for it}
registry:
  description: Id of the attribute registry; empty where the BMC serves none.
  returned: success
  type: str
  sample: BiosAttributeRegistryU58.v1_2_44
bios_version:
  description: Version of the BIOS.
  returned: success
  type: str
  sample: 05.10.00
settings_uri:
  description: Where pending values are.
  returned: success
  type: str
  sample: /redfish/v1/Systems/1/Bios/Settings
measurements:
  description: >-
    One C(bios_setting) for each wanted attribute (C(value) applied, C(expected) wanted, C(cause) where they differ), skipped
    ones for what the machine does not offer, and C(bios_pending_values), which is 0 after a restart that took everything.
  returned: with O(state=verified)
  type: list
  elements: dict
  sample: [{name: bios_setting, scope: TurboMode, value: Enabled, expected: Enabled}]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import redfish_module
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_operation import (
    Json,
    Request,
    stage_settings,
    verify_settings,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_client import RedfishClient


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **redfish_module.CONNECTION,
            "state": {"type": "str", "choices": ["staged", "verified"], "default": "staged"},
            "settings": {"type": "dict", "default": {}},
            "logical": {"type": "dict", "default": {}},
            "unsupported": {"type": "str", "choices": ["warn", "fail"], "default": "warn"},
            "unlock": {"type": "bool", "default": False},
            "foreign_pending": {"type": "str", "choices": ["keep", "clear", "refuse"], "default": "keep"},
            "require_registry": {"type": "bool", "default": True},
            "next_command": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    names = (
        "settings",
        "logical",
        "unsupported",
        "unlock",
        "foreign_pending",
        "require_registry",
        "system_id",
        "next_command",
    )
    request = Request(**{name: module.params[name] for name in names}, check_mode=module.check_mode)

    def work(client: RedfishClient) -> Json:
        return (stage_settings if module.params["state"] == "staged" else verify_settings)(client, request)

    redfish_module.run(module, work)


if __name__ == "__main__":
    main()
