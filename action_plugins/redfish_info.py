"""Run `redfish_info` without a process of its own where it can be (the documentation is in library/redfish_info.py)."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import redfish_here


class ActionModule(redfish_here.RunsHere, ActionBase):
    MODULE = redfish_here.prepare("redfish_info")
