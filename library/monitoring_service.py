#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: files and units of the monitoring."""

from __future__ import annotations

DOCUMENTATION = r"""
module: monitoring_service
short_description: Have the monitoring's files and units on a machine as wanted
description:
  - Writes every file that differs, the metrics collector among them, and enables and starts the units. A unit whose process was started
    with another configuration than the wanted one (C(PLUMBLINE_CONFIGURATION) in its environment) is restarted, so a run that was cut
    off between a change and the restart is made good by the next.
version_added: 0.1.0
author:
  - The Plumbline founders
options:
  files:
    description: Text by path. Owned by root, mode 0644; none holds a secret.
    type: dict
    default: {}
  directories:
    description: Directories whose C(*.yml) files are these and no others.
    type: list
    elements: path
    default: []
  collector_directory:
    description: Where the metrics collector's program is put. Empty leaves it out.
    type: str
    default: ""
  units:
    description: The units, in the order in which they are started.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The unit.
        type: str
        required: true
      configuration:
        description: The value of C(PLUMBLINE_CONFIGURATION) in its file. Empty for a timer.
        type: str
        default: ""
attributes:
  check_mode:
    description: Says which files would change and which units would be restarted.
    support: full
  diff_mode:
    description: Shows what changes in which file.
    support: full
"""

EXAMPLES = r"""
- name: The collector runs every half minute
  plumbline.plumbline.monitoring_service:
    files:
      /etc/systemd/system/plumbline-metrics.timer: "{{ timer_text }}"
    collector_directory: /opt/plumbline/lib
    units:
      - {name: plumbline-metrics.timer}
"""

RETURN = r"""
files:
  description: Files that were (or in check mode would be) written or removed.
  returned: always
  type: list
  elements: str
  sample: [/etc/plumbline/monitoring/prometheus.yml]
restarted:
  description: Why each unit was (or would be) started, by its name.
  returned: always
  type: dict
  sample: {plumbline-prometheus.service: [its configuration changed]}
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import metrics_collector, monitoring_files


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "dict", "default": {}},
            "directories": {"type": "list", "elements": "path", "default": []},
            "collector_directory": {"type": "str", "default": ""},
            "units": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "configuration": {"type": "str", "default": ""},
                },
            },
        },
        supports_check_mode=True,
    )
    wanted = {path: str(text) for path, text in module.params["files"].items()}
    try:
        if module.params["collector_directory"]:
            package = metrics_collector.__name__.rpartition(".")[0]
            wanted.update(monitoring_files.program_files(package, module.params["collector_directory"]))
        different = monitoring_files.differing(wanted)
        removed = [
            path
            for directory in module.params["directories"]
            for path in monitoring_files.surplus(directory, wanted, ".yml")
        ]
        diff = [
            {"before_header": path, "after_header": path, "before": before or "", "after": after}
            for path, (before, after) in different.items()
            # The collector's program is code of this checkout: that it changes says enough.
            if not path.endswith(".py")
        ]
        diff += [
            {"before_header": path, "after_header": path, "before": Path(path).read_text(errors="replace"), "after": ""}
            for path in removed
        ]
        if not module.check_mode:
            for path, (_, after) in different.items():
                monitoring_files.write(path, after)
            for path in removed:
                Path(path).unlink()
            if any(path.startswith("/etc/systemd/") for path in different):
                monitoring_files.systemctl("daemon-reload")
        units = monitoring_files.plan(module.params["units"], different)
        if not module.check_mode:
            if any(unit["needs_reload"] for unit in units):
                monitoring_files.systemctl("daemon-reload")
            for unit in units:
                if not unit["enabled"]:
                    monitoring_files.systemctl("enable", unit["name"])
                if unit["reasons"]:
                    monitoring_files.systemctl("restart", unit["name"])
    except monitoring_files.UnitError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"expected to write {error.filename}, found that it cannot be done: {error.strerror}: make room or correct its owner"
        )
    restarted = {unit["name"]: unit["reasons"] for unit in units if unit["reasons"]}
    module.exit_json(
        changed=bool(different or removed or restarted or any(not unit["enabled"] for unit in units)),
        files=sorted([*different, *removed]),
        restarted=restarted,
        diff=diff,
    )


if __name__ == "__main__":
    main()
