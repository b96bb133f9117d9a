"""ASGI middleware beside vLLM: `vllm serve MODEL --middleware plumbline_serving.Middleware`, configured by PLUMBLINE_SERVING (JSON).

It says whether the endpoint is ready, drains it before a stop, refuses what is too much, and cleans prompts. docs/serving-middleware.md
describes it. Pure ASGI, standard library only.
"""

from __future__ import annotations

import os
import sys

from plumbline_serving.middleware import Middleware
from plumbline_serving.settings import VARIABLE, SettingsError, from_environment

__all__ = ["Middleware", "check_settings"]
__version__ = "0.1.0"


def check_settings() -> None:
    """End the process with one sentence where the settings are wrong (vLLM's plugins run before a model is loaded)."""
    if VARIABLE not in os.environ:
        return
    try:
        from_environment()
    except SettingsError as error:
        sys.exit(f"plumbline_serving: {error}")
