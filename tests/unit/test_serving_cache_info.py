"""The running engine's cache beside the plan's, over a real socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_cache_info import (
    cache_blocks,
    measure_cache,
)

METRICS = """# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",num_gpu_blocks="364",sliding_window="None"} 1.0
vllm:num_requests_running{engine="0"} 0.0
"""


@contextmanager
def serving(status: int, text: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(text.encode())

        log_message: Callable[..., None] = lambda *_: None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


@pytest.mark.parametrize(("planned", "ratio"), [(364, 1.0), (400, 0.91)])
def test_blocks_over_those_of_the_plan(planned: int, ratio: float) -> None:
    with serving(200, METRICS) as url:
        entry = measure_cache(url, "here", planned, 5)
    assert entry["value"] == ratio
    assert entry["conditions"] == {"blocks": 364, "planned_blocks": planned}


def test_of_several_engines_the_smallest_counts() -> None:
    assert cache_blocks(METRICS + METRICS.replace("364", "300").split("gauge\n")[1]) == 300


def test_an_engine_that_does_not_tell_is_skipped() -> None:
    with serving(200, METRICS.replace('"364"', '"None"')) as url:
        assert "does not tell" in measure_cache(url, "here", 1, 5)["skipped"]
    with serving(404, "") as url:
        assert "does not tell" in measure_cache(url, "here", 1, 5)["skipped"]


def test_an_engine_that_refuses_or_is_gone_is_an_error() -> None:
    with serving(401, "") as url:
        assert "answers 401" in measure_cache(url, "here", 1, 5)["error"]
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    assert "cannot be read" in measure_cache(f"http://127.0.0.1:{port}/v1", "here", 1, 5)["error"]
