"""What `register` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.config import MODELS_CONFIG_MAP
from vllm.transformers_utils import config as vllm_configs

from plumbline_yuan.compat import split_at
from plumbline_yuan.config import ARCHITECTURE, MODEL_TYPE, YuanConfig
from plumbline_yuan.settings import YuanServing

# The op is registered when the model's module is imported; its name must be known when vLLM makes its configuration.
OP = "plumbline_yuan_filter"


class YuanConfigParser(vllm_configs.HFConfigParser):
    """vLLM's parser for config.json, which also knows a Yuan configuration that has no model_type but the architecture."""

    def parse(self, model: str | Path, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], PretrainedConfig]:
        """Read the configuration of `model`; like vLLM's own for every other architecture."""
        try:
            values, _ = PretrainedConfig.get_config_dict(model)
        except (OSError, ValueError):  # not there, or not readable: vLLM's own parser says so in its words
            values = {}
        if not values.get("model_type") and values.get("architectures") == [ARCHITECTURE]:
            return values, YuanConfig.from_dict(values, name_or_path=str(model))
        parsed: tuple[dict[str, Any], PretrainedConfig] = super().parse(model, *args, **kwargs)
        return parsed


def register_all() -> None:
    """Register everything; doing it again changes nothing."""
    # A registered model_type is local code: what the checkpoint's auto_map names is never imported.
    AutoConfig.register(MODEL_TYPE, YuanConfig, exist_ok=True)
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, f"plumbline_yuan.model:{ARCHITECTURE}")
    MODELS_CONFIG_MAP.setdefault(ARCHITECTURE, YuanServing)
    parsers = vllm_configs._CONFIG_FORMAT_TO_CONFIG_PARSER
    if parsers.get("hf") is vllm_configs.HFConfigParser:
        parsers["hf"] = YuanConfigParser
    split_at(OP)
