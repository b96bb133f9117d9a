#!/usr/bin/python
"""Turn a machine on or off, or restart it, through its BMC (Ansible module)."""

from __future__ import annotations

DOCUMENTATION = r"""
module: redfish_power
short_description: Turn a machine on or off, or restart it, through its BMC
description:
  - Chooses among the reset types that the BMC offers, sends them, and waits until the machine is where it should be.
  - >-
    A power cycle asks the operating system to shut down first, so that file systems are clean, and takes the power away only
    when that takes longer than O(graceful_timeout_seconds).
  - Knows nothing of the operating system afterwards; see M(plumbline.plumbline.await_restart).
version_added: 0.1.0
extends_documentation_fragment:
  - plumbline.plumbline.redfish
options:
  state:
    description:
      - V(powered_on) and V(powered_off) change only what is not so.
      - V(power_cycled) turns off and on again, always.
    type: str
    choices: [powered_on, powered_off, power_cycled]
  reset_type:
    description: A C(ResetType) of Redfish to send as it is, for instance V(ForceRestart).
    type: str
  wait_timeout_seconds:
    description: How long each step may take. POST of a large server takes 5 to 10 minutes.
    type: int
    default: 900
  graceful_timeout_seconds:
    description: How long the operating system may take to shut down before the power is taken away.
    type: int
    default: 180
  wait_post:
    description: Whether to wait until POST is over, where the BMC says how far it is (C(BootProgress)).
    type: bool
    default: true
attributes:
  check_mode:
    description: Predicts whether anything would be sent.
    support: full
  diff_mode:
    description: Shows the power state before and after.
    support: full
author:
  - The Plumbline founders
"""

EXAMPLES = r"""
- name: The machine has been off and on again
  plumbline.plumbline.redfish_power:
    base_url: https://10.0.0.7
    username: admin
    password: "{{ bmc_password }}"
    state: power_cycled
  delegate_to: localhost
"""

RETURN = r"""
sent:
  description: The reset types that were sent, in their order; empty in check mode. Also told where the machine did not get there.
  returned: success, or when the machine did not get there
  type: list
  elements: str
  sample: [GracefulShutdown, 'On']
power_state_before:
  description: C(PowerState) before.
  returned: success
  type: str
  sample: 'On'
power_state:
  description: C(PowerState) at the end.
  returned: success
  type: str
  sample: 'On'
boot_state:
  description: C(BootProgress.LastState) at the end; empty where the BMC has none.
  returned: success
  type: str
  sample: OSBootStarted
elapsed_seconds:
  description: How long it took.
  returned: success
  type: float
  sample: 312.4
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import redfish_module
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_client import Json, RedfishClient
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_connection import RedfishError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_reset import PowerRequest, Resetter


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **redfish_module.CONNECTION,
            "state": {"type": "str", "choices": ["powered_on", "powered_off", "power_cycled"]},
            "reset_type": {"type": "str"},
            "wait_timeout_seconds": {"type": "int", "default": 900},
            "graceful_timeout_seconds": {"type": "int", "default": 180},
            "wait_post": {"type": "bool", "default": True},
        },
        required_one_of=[["state", "reset_type"]],
        mutually_exclusive=[["state", "reset_type"]],
        supports_check_mode=True,
    )
    request = PowerRequest(
        state=module.params["state"] or "",
        reset_type=module.params["reset_type"] or "",
        wait_timeout_seconds=module.params["wait_timeout_seconds"],
        graceful_timeout_seconds=module.params["graceful_timeout_seconds"],
        wait_post=module.params["wait_post"],
        system_id=module.params["system_id"],
        check_mode=module.check_mode,
    )

    def work(client: RedfishClient) -> Json:
        resetter = Resetter(client, request)
        try:
            result = resetter.run()
        except RedfishError as error:
            # Whoever waits for the machine must know whether it was touched.
            return {"failed": True, "msg": str(error), "sent": resetter.sent, "changed": bool(resetter.sent)}
        wanted = request.reset_type or request.state
        before = {"power_state": result["power_state_before"]}
        after = {"power_state": result["power_state"]}
        if result["changed"]:
            after["sent"] = ", ".join(result["sent"]) or f"what is needed for {wanted}"
        result["diff"] = {"before": before, "after": after}
        return result

    redfish_module.run(module, work)


if __name__ == "__main__":
    main()
