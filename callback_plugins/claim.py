"""Say which hosts this run works on, so that the preflight of another run refuses them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.callback import CallbackBase
from ansible.template import Templar
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import run_claims
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.controller import plain, variables_of

DOCUMENTATION = r"""
name: claim
type: notification
short_description: Keep two runs from working on one host
version_added: 0.2.0
description:
  - Notes in C(runs.json), in the folder of the evidence, which hosts this process works on; M(plumbline.plumbline.preflight) refuses a
    host that another living process has.
  - A run in check mode and the stage survey only look, and claim nothing. A claim ends with its process, however that ends.
requirements:
  - enabled in configuration (callbacks_enabled)
author:
  - The Plumbline founders
"""

ONLY_LOOKS = "survey"


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "plumbline.plumbline.claim"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._playbook = ""
        self._directories: set[str] = set()

    def v2_playbook_on_start(self, playbook: Any) -> None:
        self._playbook = Path(str(getattr(playbook, "_file_name", ""))).name

    def v2_playbook_on_play_start(self, play: Any) -> None:
        stage = str(play.get_vars().get("plumbline_stage") or "")
        if not stage or stage == ONLY_LOOKS or play.check_mode:
            return
        try:
            hosts = [host.get_name() for host in play.get_variable_manager()._inventory.get_hosts(play.hosts)]
            directory = self._artifacts(play, hosts)
            if not directory:
                return
            # Workers are forked from this process and know by it which claim is their own.
            os.environ["PLUMBLINE_RUN_PROCESS"] = str(os.getpid())
            self._directories.add(directory)
            run_claims.claim(directory, hosts, self._playbook)
        except (AnsibleError, OSError) as error:
            self._display.warning(f"Another run on the same hosts would not be noticed: {error}")

    def v2_playbook_on_stats(self, stats: Any) -> None:
        for directory in self._directories:
            try:
                run_claims.release(directory)
            except OSError as error:
                self._display.warning(f"{directory}/{run_claims.FILE_NAME} could not be written: {error}")

    def _artifacts(self, play: Any, hosts: list[str]) -> str:
        if not hosts:
            return ""
        variables = variables_of(play, hosts[0])
        templar = Templar(loader=play.get_loader(), variables=variables)
        return str(plain(templar.template(variables.get("plumbline_artifacts_dir"))) or "")
