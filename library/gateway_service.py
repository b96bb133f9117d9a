#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: the gateway runs with the wanted configuration."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_service
short_description: Have the gateway's unit run with the wanted configuration, checked before it replaces the old one
description:
  - Puts configuration, maps and certificate into a directory of their own, lets C(haproxy -c) check it, switches to it with one rename, and
    reloads the unit without a lost connection. What does not come up is taken back.
  - Asks the running process which configuration it was started with, so a run that was cut off before the reload is made good by the next.
author:
  - The Plumbline founders
options:
  name:
    description: Name of the unit.
    type: str
    default: plumbline-gateway.service
  configuration:
    description: Text of the configuration, in which C(@CONFIGURATION@) stands for its digest. Holds no secret.
    type: str
    required: true
  files:
    description: Name -> content of the files beside it, readable by root alone.
    type: dict
    required: true
  self_signed_names:
    description: >-
      Names and addresses for a certificate that is made once where O(files) has no C(tls.pem), and made anew for other
      names or a month before its end. Empty makes none.
    type: list
    elements: str
    default: []
  directory:
    description: Where the directories of configurations are.
    type: path
    default: /etc/plumbline/gateway
  socket:
    description: HAProxy's runtime socket.
    type: path
    default: /run/plumbline-gateway/admin.sock
  unit_configuration:
    description: Digest of the unit's text, which the unit has in its environment as C(PLUMBLINE_UNIT). Another one needs a restart.
    type: str
    required: true
  timeout_seconds:
    description: How long a start or a reload may take.
    type: float
    default: 30
attributes:
  check_mode:
    description: >-
      Says what would change, after HAProxy has checked the configuration in a temporary directory (where HAProxy is installed), and leaves
      everything as it is.
    support: full
  diff_mode:
    description: Shows the configuration, and of the other files only the names.
    support: full
"""

EXAMPLES = r"""
- name: The gateway runs as configured
  plumbline.plumbline.gateway_service:
    configuration: "{{ lookup('ansible.builtin.template', 'haproxy.cfg.j2') }}"
    files: {clients.map: "DIGEST alice\n", limits.map: "", nodes.map: "nodes KEY\n"}
    self_signed_names: [llm.example.net]
    unit_configuration: "{{ __gateway_unit_text | hash('sha256') }}"
  no_log: true
"""

RETURN = r"""
configuration:
  description: Digest of the configuration in force.
  returned: always
  type: str
  sample: 5f0c6e8c1f8d4a6c9d2b7a3e4f5a6b7c
reasons:
  description: Why something was done; empty when everything was as wanted.
  returned: always
  type: list
  elements: str
  sample: [its configuration changed]
action:
  description: What was (or in check mode would be) done.
  returned: always
  type: str
  sample: reload
certificate:
  description: The certificate that clients see, without its key; empty without TLS.
  returned: always
  type: str
  sample: "-----BEGIN CERTIFICATE-----..."
"""

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    gateway_certificate,
    gateway_files,
    gateway_runtime,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.systemd_service import (
    PROPERTIES,
    State,
    parse_show,
)

POLL_SECONDS = 0.1


class Gateway:
    """The unit and its files."""

    def __init__(self, module: AnsibleModule) -> None:
        """Find the tools; nothing is changed."""
        self.module = module
        self.name: str = module.params["name"]
        self.root = Path(module.params["directory"])
        self.socket = Path(module.params["socket"])
        self.systemctl = module.get_bin_path("systemctl", required=True)
        self.haproxy: str = module.get_bin_path("haproxy") or ""

    def run(self, command: list[str]) -> tuple[int, str, str]:
        """Run a command."""
        status, out, err = self.module.run_command(command)
        return status, out, err

    def state(self) -> State:
        """Return the state of the unit."""
        return parse_show(self.run([self.systemctl, "show", self.name, f"--property={','.join(PROPERTIES)}"])[1])

    def running(self) -> tuple[str, int]:
        """Return configuration and process of what answers; empty and 0 where nothing does."""
        try:
            info = gateway_runtime.ask(self.socket, "show info")
        except gateway_runtime.GatewayError:
            return "", 0
        return gateway_runtime.running_configuration(info), gateway_runtime.worker_pid(info)

    def unit_in_force(self, state: State) -> str:
        """Return the digest of the unit that the main process was started by."""
        try:
            environment = Path(f"/proc/{state.main_pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return ""
        found = [entry.partition(b"=")[2] for entry in environment if entry.startswith(b"PLUMBLINE_UNIT=")]
        return found[0].decode("ascii", "replace") if found else ""

    def last_words(self) -> str:
        """Return what HAProxy said last in the journal, for a sentence."""
        journalctl = self.module.get_bin_path("journalctl")
        if not journalctl:
            return ""
        lines = self.run([journalctl, "--no-pager", "-o", "cat", "-n", "60", "-u", self.name])[1].splitlines()
        alerts = [line for line in lines if "[ALERT]" in line or "plumbline-gateway: " in line]
        return alerts[-1].strip()[:400] if alerts else ""

    def do(self, action: str, wanted: str) -> str:
        """Start, restart or reload the unit and wait until the wanted configuration answers; what went wrong, or nothing."""
        _, before = self.running()
        status, out, err = self.run([self.systemctl, action, self.name])
        deadline = time.monotonic() + self.module.params["timeout_seconds"]
        while status == 0:
            found, pid = self.running()
            if found == wanted and pid != before and self.state().active == "active":
                return ""
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        return self.last_words() or (err or out).strip() or f"it does not answer on {self.socket}"


def reasons_for(gateway: Gateway, state: State, wanted: str, unit: str) -> tuple[list[str], str]:
    """Return why something must be done, and what."""
    if state.active not in ("active", "reloading"):
        return [f"it is {state.active or 'absent'}"], "start"
    if gateway.unit_in_force(state) != unit:
        return ["its unit changed"], "restart"
    if gateway.running()[0] != wanted:
        return ["its configuration changed"], "reload"
    return [], ""


def put_in_force(gateway: Gateway, directory: Path, action: str) -> None:
    """Switch to a directory and have it run; go back and fail the module when it does not come up."""
    before = gateway_files.current(gateway.root)
    gateway_files.switch(gateway.root, directory)
    problem = gateway.do(action, directory.name)
    if problem:
        gateway_files.switch(gateway.root, before)
        outcome = "there was none before it"
        if before is not None and before != directory:
            # What still runs is left alone; what was ended by a restart is brought back.
            again = "" if gateway.running()[0] == before.name else gateway.do("restart", before.name)
            outcome = (
                "the one before it is in force again"
                if not again
                else f"the one before it does not come up either ({again})"
            )
        gateway.module.fail_json(
            msg=f"the gateway did not come up with the new configuration: {problem}; {outcome}; look at journalctl -u {gateway.name}"
        )
    gateway_files.tidy(gateway.root, directory, before)


def certificate_file(gateway: Gateway, names: list[str]) -> tuple[str, bool]:
    """Return the certificate that the gateway made itself, and whether it is (or, in check mode, would be) a new one."""
    openssl = gateway.module.get_bin_path("openssl")
    if not openssl:
        if gateway.module.check_mode:
            return "", True
        gateway.module.fail_json(
            msg="expected openssl on the node to make a certificate, found none: install it, or give gateway_tls_certificate"
        )
    path = gateway.root / "self-signed.pem"
    if gateway_certificate.still_good(path, names, openssl, gateway.run):
        return path.read_text(encoding="ascii"), False
    if gateway.module.check_mode:
        return "", True
    gateway_certificate.make(path, names, openssl, gateway.run)
    return path.read_text(encoding="ascii"), True


def publish(path: Path, certificate: str) -> None:
    """Lay the certificate (not its key) where everybody may read it, for clients that are to trust it."""
    if certificate and (not path.is_file() or path.read_text(encoding="utf-8") != certificate):
        path.write_text(certificate, encoding="utf-8")
        path.chmod(0o644)


def work(gateway: Gateway) -> dict[str, Any]:
    """Do what is wanted; the module's result."""
    parameters, module = gateway.module.params, gateway.module
    files: dict[str, str] = dict(parameters["files"])
    renewed = False
    if parameters["self_signed_names"] and "tls.pem" not in files:
        files["tls.pem"], renewed = certificate_file(gateway, parameters["self_signed_names"])
    text = parameters["configuration"]
    wanted = gateway_files.digest(text, files)
    state = gateway.state()
    reasons, action = reasons_for(gateway, state, wanted, parameters["unit_configuration"])
    if renewed:
        reasons.append("its own certificate is made")
    before = gateway_files.current(gateway.root)
    if before is not None and before.name != wanted and not reasons:
        reasons, action = ["its configuration changed"], "reload"
    result: dict[str, Any] = {
        "changed": bool(reasons) or not state.enabled,
        "reasons": reasons,
        "action": action,
        "configuration": wanted,
        "certificate": gateway_certificate.public_part(files.get("tls.pem", "")),
    }
    if result["changed"]:
        others = gateway_files.changed_files(before, files)
        note = "".join(f"# {name} changed\n" for name in others)
        result["diff"] = {
            "before_header": str(gateway.root / "current" / gateway_files.NAME),
            "after_header": str(gateway.root / "current" / gateway_files.NAME),
            "before": gateway_files.text_of(before),
            "after": text + note,
        }
    if module.check_mode:
        # Without a certificate of its own yet there is nothing whole to check.
        if gateway.haproxy and files.get("tls.pem", "-"):
            gateway_files.try_out(text, files, gateway.haproxy, gateway.run)
        return result
    if not gateway.haproxy:
        module.fail_json(msg="expected HAProxy on the node, found none: install the package haproxy (gateway_packages)")
    directory = gateway_files.put(gateway.root, text, files, gateway.haproxy, gateway.run)
    gateway.run([gateway.systemctl, "daemon-reload"]) if state.needs_reload or state.load != "loaded" else None
    if not state.enabled:
        status, _, err = gateway.run([gateway.systemctl, "enable", gateway.name])
        if status != 0:
            module.fail_json(msg=f"{gateway.name} cannot be enabled: {err.strip()}")
    if action:
        gateway.run([gateway.systemctl, "daemon-reload"])
        put_in_force(gateway, directory, action)
    elif before != directory:
        gateway_files.switch(gateway.root, directory)
    publish(gateway.root / "certificate.pem", result["certificate"])
    return result


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "default": "plumbline-gateway.service"},
            "configuration": {"type": "str", "required": True},
            "files": {"type": "dict", "required": True, "no_log": True},
            "self_signed_names": {"type": "list", "elements": "str", "default": []},
            "directory": {"type": "path", "default": "/etc/plumbline/gateway"},
            "socket": {"type": "path", "default": "/run/plumbline-gateway/admin.sock"},
            "unit_configuration": {"type": "str", "required": True},
            "timeout_seconds": {"type": "float", "default": 30},
        },
        supports_check_mode=True,
    )
    gateway = Gateway(module)
    try:
        result = work(gateway)
    except (gateway_files.GatewayFilesError, gateway_certificate.CertificateError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
