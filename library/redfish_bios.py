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
      - >-
        Known vendors are IEIT (Inspur), Dell, HPE, Lenovo and Supermicro, and what O(vendor_files) add. The live registry
        decides which attribute is meant.
    type: dict
    default: {}
  golden_file:
    description:
      - >-
        A file on the controller with the attributes of a machine, as M(plumbline.plumbline.redfish_bios_snapshot) writes it,
        to be put on this one. O(logical) and O(settings) win over it.
      - >-
        Left out, and named in RV(left_out) where they differ, are passwords, what belongs to one machine (serial number,
        addresses, boot order), what starts an action, what is read-only or hidden, what this machine does not have, and what a
        profile of the file sets itself.
    type: path
  golden_other_model:
    description: >-
      Whether the file may be of another model or registry. Values that this machine does not know are then left out. With
      V(false) such a file is refused.
    type: bool
    default: false
  vendor_files:
    description:
      - >-
        YAML files on the controller with a site's own mappings from logical settings to attributes, of a new vendor or laid
        over those that come with Plumbline (C(data/bios_vendors)). C(docs/bios.md) has their form.
    type: list
    elements: path
    default: []
  vendor_mappings:
    description:
      - >-
        The mappings themselves. The action plugin of this module reads them from C(data/bios_vendors) and O(vendor_files)
        on the controller, once for all hosts; what a task gives here is laid over them.
    type: list
    elements: dict
    default: []
  golden:
    description: The content of O(golden_file). The action plugin reads it; a task may give it instead of a file.
    type: dict
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
  blocking_job:
    description:
      - What becomes of a configuration job of the BMC that keeps settings from being staged (Dell's queue takes one at a time).
      - >-
        V(wait) waits for one that runs, for O(blocking_job_wait_seconds), and refuses with its id where it waits for a
        restart. V(refuse) always refuses. V(delete) deletes one that has not begun, with the values that it carries; a
        running one is waited for, and one that is no BIOS configuration job is never deleted.
    type: str
    choices: [wait, refuse, delete]
    default: wait
  blocking_job_wait_seconds:
    description: How long a running job is waited for, also with O(state=verified).
    type: int
    default: 300
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
  - module: plumbline.plumbline.redfish_bios_snapshot
  - module: plumbline.plumbline.bios_diff
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

- name: A machine is set like the one that was backed up
  plumbline.plumbline.redfish_bios:
    base_url: https://10.0.0.8
    username: admin
    password: "{{ bmc_password }}"
    golden_file: golden/r750.json
  delegate_to: localhost

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
deleted_jobs:
  description: Ids of the jobs that were deleted (in check mode, would be), with O(blocking_job=delete).
  returned: with O(state=staged)
  type: list
  elements: str
left_out:
  description: Attributes of the golden file that differ on this machine and are not put on it, with the reason.
  returned: success
  type: dict
  sample: {SerialNumber: it belongs to one machine}
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
    ones for what the machine does not offer, C(bios_pending_values) and C(bios_jobs) (configuration jobs that have not ended),
    both 0 after a restart that took everything.
  returned: with O(state=verified)
  type: list
  elements: dict
  sample: [{name: bios_setting, scope: TurboMode, value: Enabled, expected: Enabled}]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import redfish_module
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_golden import read_golden
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_operation import (
    Json,
    Request,
    stage_settings,
    verify_settings,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_vendor_data import checked, merged
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_client import RedfishClient

OPTIONS: dict[str, Any] = {
    "settings": {"type": "dict", "default": {}},
    "logical": {"type": "dict", "default": {}},
    "golden_other_model": {"type": "bool", "default": False},
    "unsupported": {"type": "str", "choices": ["warn", "fail"], "default": "warn"},
    "unlock": {"type": "bool", "default": False},
    "foreign_pending": {"type": "str", "choices": ["keep", "clear", "refuse"], "default": "keep"},
    "require_registry": {"type": "bool", "default": True},
    "blocking_job": {"type": "str", "choices": ["wait", "refuse", "delete"], "default": "wait"},
    "blocking_job_wait_seconds": {"type": "int", "default": 300},
    "next_command": {"type": "str", "default": ""},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **redfish_module.CONNECTION,
            **OPTIONS,
            "state": {"type": "str", "choices": ["staged", "verified"], "default": "staged"},
            "golden_file": {"type": "path"},
            "golden": {"type": "dict"},
            "vendor_files": {"type": "list", "elements": "path", "default": []},
            "vendor_mappings": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    parameters = module.params

    def work(client: RedfishClient) -> Json:
        given = enumerate(parameters["vendor_mappings"], 1)
        golden = parameters["golden"]
        request = Request(
            **{name: parameters[name] for name in (*OPTIONS, "system_id")},
            golden=None if golden is None else read_golden(golden, parameters["golden_file"] or "the option golden"),
            vendors=merged([checked(mapping, f"vendor_mappings, item {number}") for number, mapping in given]),
            check_mode=module.check_mode,
        )
        return (stage_settings if parameters["state"] == "staged" else verify_settings)(client, request)

    if parameters["golden_file"] and parameters["golden"] is None:
        module.fail_json(
            msg="golden_file was given without its content: run the task by its full name plumbline.plumbline.redfish_bios,"
            " whose action reads the file on the controller, or give golden"
        )
    redfish_module.run(module, work)


if __name__ == "__main__":
    main()
