#!/usr/bin/python
"""Bring firmware in through the BMC, or read back what became of it (Ansible module)."""

from __future__ import annotations

DOCUMENTATION = r"""
module: redfish_firmware
short_description: Update firmware through the BMC for the next restart, or read versions back
description:
  - >-
    Compares the installed version of every component with its floor (at least) or pin (exactly), and brings in the image of
    each one that is not as wanted. The BMC comes first, then the BIOS, then everything else.
  - >-
    Uploads a file by multipart push, or by the older push where the BMC knows only that; lets the BMC fetch a URI by
    C(SimpleUpdate). Streams, so that an image of hundreds of MB takes no memory, and follows the task to its end.
  - >-
    Host components are staged to become active with the next restart (C(@Redfish.OperationApplyTime) C(OnReset)); see
    RV(restart_required). An update of the BMC is active at once: the BMC restarts, and is waited for until it answers with the
    new version.
  - An update that lies ready already, or that the BMC is at, is not sent again.
  - >-
    Everything is checked before the first byte is sent: floors, pins and images against each other, checksums of files, what
    the BMC offers. Where one component cannot get to what is asked for, none is touched, and RV(measurements) say why.
  - Restarts no host; see M(plumbline.plumbline.redfish_power).
version_added: 0.2.0
extends_documentation_fragment:
  - plumbline.plumbline.redfish
options:
  state:
    description:
      - V(staged) brings in what is not as wanted.
      - V(verified) reads back and returns RV(measurements) for the gate. It changes nothing and judges nothing.
    type: str
    choices: [staged, verified]
    default: staged
  floors:
    description: >-
      Component to lowest acceptable version, quoted. A component is named by its C(Id), its C(Name), or a pattern with C(*);
      capitals do not count. C(BIOS) and C(BMC) work on every machine.
    type: dict
    default: {}
  pins:
    description: Component to the one acceptable version, quoted.
    type: dict
    default: {}
  images:
    description: At most one image for each component. One is used only where a floor or a pin asks for it.
    type: list
    elements: dict
    default: []
    suboptions:
      component:
        description: The component that it is for, named as in O(floors).
        type: str
        required: true
      version:
        description: The version that it brings, quoted, in the form that the component will report.
        type: raw
        required: true
      file:
        description: Path on the controller; the file is uploaded. Needs O(images[].sha256).
        type: path
      uri:
        description: C(http) or C(https) address that the BMC fetches it from. Must hold no password.
        type: str
      sha256:
        description: Checksum of O(images[].file), in hexadecimal digits. Checked before the upload.
        type: str
      targets:
        description: >-
          URIs of the resources that the image is for, where a BMC wants to be told. Left out, the image itself says it, or
          the inventory's entry where the BMC is known to want that.
        type: list
        elements: str
        default: []
      kind:
        description: >-
          Decides the order, and whether the BMC restarts (V(bmc)). V(auto) tells it from the component's names.
        type: str
        choices: [auto, bmc, bios, other]
        default: auto
  allow_downgrade:
    description: Whether a pin may lead back to an older version (C(ForceUpdate)). Vendors forbid some of these steps.
    type: bool
    default: false
  allow_immediate:
    description: >-
      Whether a host component may be updated by a BMC that offers nothing but C(Immediate), and may restart the host.
    type: bool
    default: false
  transfer:
    description: How a file goes to the BMC; V(auto) takes multipart push before the older push. V(simple) is for URIs only.
    type: str
    choices: [auto, multipart, push, simple]
    default: auto
  update_timeout_seconds:
    description: >-
      How long one upload may take, how long its task, how long a BMC that is at another update is asked again, and how long the
      BMC may be away after its own.
    type: int
    default: 1800
  settle_seconds:
    description: A BMC that is back and still runs the old version for so long is taken for one that went back to it.
    type: int
    default: 120
  next_command:
    description: What to run where an update did not take; goes into the measurements of O(state=verified).
    type: str
    default: ''
attributes:
  check_mode:
    description: Reads, plans and checks everything, checksums too, and predicts what would be sent.
    support: full
  diff_mode:
    description: Shows the installed, the staged and the wanted version of every component that changes.
    support: full
author:
  - The Plumbline founders
seealso:
  - module: plumbline.plumbline.redfish_firmware_info
  - module: plumbline.plumbline.redfish_power
"""

EXAMPLES = r"""
- name: BIOS and BMC are new enough at the next restart
  plumbline.plumbline.redfish_firmware:
    base_url: https://10.0.0.7
    username: admin
    password: "{{ bmc_password }}"
    ca_file: /etc/ssl/certs/bmc-ca.pem
    floors:
      BIOS: "05.12.00"
      BMC: "1.40.00"
    images:
      - component: BIOS
        version: "05.12.00"
        file: /srv/firmware/nf8260g7-bios-05.12.00.bin
        sha256: 4f7a0c7a6b2d1d9e3ac41b0cfe7a9d2c3a1b59be0f2b4e6a8c0d1e2f3a4b5c6d
      - component: BMC
        version: "1.40.00"
        uri: https://images.example/nf8260g7-bmc-1.40.00.bin
  delegate_to: localhost
  register: firmware

- name: The versions are read back after the restart
  plumbline.plumbline.redfish_firmware:
    base_url: https://10.0.0.7
    username: admin
    password: "{{ bmc_password }}"
    floors: {BIOS: "05.12.00", BMC: "1.40.00"}
    state: verified
  delegate_to: localhost
  register: running

- name: They are what was asked for
  plumbline.plumbline.gate:
    measurements: "{{ running.measurements }}"
"""

RETURN = r"""
restart_required:
  description: V(power_cycle) while an update waits for a restart (also when an earlier run staged it), else V(none).
  returned: with O(state=staged)
  type: str
  sample: power_cycle
updates:
  description: >-
    What became of each image: C(components), their C(installed) versions, C(version), C(kind), C(state) (C(active) or
    C(staged)), whether it was C(sent) by this run (in check mode, would be), C(method) and C(task).
  returned: with O(state=staged)
  type: list
  elements: dict
  sample: [{components: [BIOS], installed: [05.10.00], version: 05.12.00, kind: bios, state: staged, sent: true,
            method: multipart, task: /redfish/v1/TaskService/Tasks/7}]
components:
  description: >-
    C(id), C(name), C(version), C(staged_version) (what lies ready for it, where the inventory shows that), C(updateable),
    C(health), C(source), C(related), as they were before this run.
  returned: success
  type: list
  elements: dict
  sample: [{id: BIOS, name: BIOS, version: 05.10.00, staged_version: '', updateable: true, health: OK,
            source: /redfish/v1/UpdateService/FirmwareInventory/BIOS, related: []}]
measurements:
  description: >-
    One C(firmware_version) for each component with a floor and one C(firmware_pin) for each with a pin. With O(state=staged)
    those that wait for the restart are skipped with that reason. With O(state=verified) and images, C(firmware_pending_updates)
    too, which is 0 after a restart that took everything.
  returned: success
  type: list
  elements: dict
  sample: [{name: firmware_version, scope: BIOS, value: 05.12.00, expected: 05.12.00}]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import redfish_module
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.firmware_images import KINDS
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.firmware_operation import (
    Request,
    stage_firmware,
    verify_firmware,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_client import Json, RedfishClient
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_update import METHODS

_IMAGE = {
    "component": {"type": "str", "required": True},
    # raw: a number is refused with a sentence, where a conversion would make "1.1" of 1.10.
    "version": {"type": "raw", "required": True},
    "file": {"type": "path"},
    "uri": {"type": "str"},
    "sha256": {"type": "str"},
    "targets": {"type": "list", "elements": "str", "default": []},
    "kind": {"type": "str", "choices": list(KINDS), "default": "auto"},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **redfish_module.CONNECTION,
            "state": {"type": "str", "choices": ["staged", "verified"], "default": "staged"},
            "floors": {"type": "dict", "default": {}},
            "pins": {"type": "dict", "default": {}},
            "images": {"type": "list", "elements": "dict", "default": [], "options": _IMAGE},
            "allow_downgrade": {"type": "bool", "default": False},
            "allow_immediate": {"type": "bool", "default": False},
            "transfer": {"type": "str", "choices": list(METHODS), "default": "auto"},
            "update_timeout_seconds": {"type": "int", "default": 1800},
            "settle_seconds": {"type": "int", "default": 120},
            "next_command": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    names = (
        "floors",
        "pins",
        "images",
        "allow_downgrade",
        "allow_immediate",
        "transfer",
        "update_timeout_seconds",
        "settle_seconds",
        "next_command",
        "system_id",
    )
    request = Request(**{name: module.params[name] for name in names}, check_mode=module.check_mode)

    def work(client: RedfishClient) -> Json:
        return (stage_firmware if module.params["state"] == "staged" else verify_firmware)(client, request)

    redfish_module.run(module, work)


if __name__ == "__main__":
    main()
