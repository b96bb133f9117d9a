"""What the engine says of its key-value cache (GET /metrics, vllm:cache_config_info), beside what the plan reckoned."""

from __future__ import annotations

import http.client
import re
from typing import Any
from urllib.parse import urlsplit

_LONGEST = 8 * 1024 * 1024
_LINE = re.compile(r"^vllm:cache_config_info\{(.*)\}\s", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def cache_blocks(metrics: str) -> int | None:
    """Blocks of the pool, the fewest of any engine behind the server; `None` where none says so."""
    found = []
    for line in _LINE.finditer(metrics):
        blocks = dict(_LABEL.findall(line.group(1))).get("num_gpu_blocks", "")
        if blocks.isascii() and blocks.isdigit():
            found.append(int(blocks))
    return min(found, default=None)


def read_metrics(base_url: str, timeout_seconds: float) -> str:
    """The metrics of the server that answers at `base_url` (http://HOST:PORT/v1). Raises OSError or http.client.HTTPException."""
    address = urlsplit(base_url)
    connection = http.client.HTTPConnection(
        address.hostname or "127.0.0.1", address.port or 80, timeout=timeout_seconds
    )
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read(_LONGEST).decode("utf-8", "replace")
        if answer.status == http.client.NOT_FOUND:
            return ""  # an engine that keeps no metrics
        if answer.status != http.client.OK:
            raise OSError(f"/metrics answers {answer.status}")
        return text
    finally:
        connection.close()


def measure_cache(base_url: str, scope: str, planned_blocks: int, timeout_seconds: float) -> dict[str, Any]:
    """The measurement `serving_cache_of_plan`: blocks of the running engine over those of the plan."""
    entry: dict[str, Any] = {"name": "serving_cache_of_plan", "scope": scope, "unit": "ratio"}
    try:
        blocks = cache_blocks(read_metrics(base_url, timeout_seconds))
    except (OSError, http.client.HTTPException) as error:
        return {**entry, "error": f"the engine's metrics cannot be read ({error})"}
    if blocks is None:
        return {**entry, "skipped": "this engine does not tell how many blocks its cache has (vllm:cache_config_info)"}
    told = {"blocks": blocks, "planned_blocks": planned_blocks}
    return {**entry, "value": blocks / planned_blocks, "conditions": told}
