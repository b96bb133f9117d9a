"""Yuan2.0 on stock vLLM, out of tree: `pip install` it beside vLLM, and `vllm serve DIRECTORY` knows YuanForCausalLM.

vLLM calls `register` in each of its processes (entry point group vllm.general_plugins). It may be called any number of times.
"""

from __future__ import annotations

__all__ = ["register"]
__version__ = "0.1.0"


def register() -> None:
    """Tell transformers the configuration, and vLLM the model and what it must not be asked for."""
    from plumbline_yuan.registration import register_all  # noqa: PLC0415 - vLLM imports this package before it is configured

    register_all()
