"""The endpoint survives: killed processes, wrong options, a new key; and nonsense is never called ready."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import CHECKOUT, Lab
from tests.e2e.test_3_model import damaged

pytestmark = pytest.mark.lab

PLAYBOOK = "playbooks/serving.yml"
UNIT = "plumbline-serving.service"
READY_WITHIN_SECONDS = 300


def extra(**variables: object) -> tuple[str, str]:
    return "-e", json.dumps(variables)


def properties(lab: Lab, *names: str) -> dict[str, str]:
    text = lab.node(f"systemctl show {UNIT} --property={','.join(names)}")
    return dict(line.partition("=")[::2] for line in text.splitlines())


class Api:
    """The endpoint as a user has it: the published port, and the key from the lab's secrets."""

    def __init__(self, lab: Lab) -> None:
        record = lab.node(f"sed -n 's/^base_url=//p; s/^model_name=//p' /etc/systemd/system/{UNIT}").splitlines()
        self.model, self.base_url = record
        self.key = (CHECKOUT / "lab" / ".state" / "api-key").read_text().strip()

    def request(self, body: dict[str, object], key: str = "") -> urllib.request.Request:
        headers = {"Authorization": f"Bearer {key or self.key}", "Content-Type": "application/json"}
        payload = json.dumps({"model": self.model, "temperature": 0, **body}).encode()
        return urllib.request.Request(f"{self.base_url}/chat/completions", payload, headers)

    def ask(self, key: str = "") -> str:
        body: dict[str, object] = {
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 24,
        }
        with urllib.request.urlopen(self.request(body, key), timeout=60) as response:
            return str(json.load(response)["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def api(lab: Lab) -> Api:
    return Api(lab)


class Story:
    """A long streaming answer that is read in the background."""

    def __init__(self, api: Api) -> None:
        self.lines = 0
        self.began = threading.Event()
        self.thread = threading.Thread(target=self._read, args=(api,), daemon=True)
        self.thread.start()

    def _read(self, api: Api) -> None:
        body: dict[str, object] = {
            "messages": [{"role": "user", "content": "Tell a long story."}],
            "max_tokens": 1500,
            "ignore_eos": True,
            "stream": True,
        }
        try:
            with urllib.request.urlopen(api.request(body), timeout=120) as response:
                for line in response:
                    self.lines += line.startswith(b"data: ")
                    if self.lines >= 5:
                        self.began.set()
        except (OSError, urllib.error.URLError):
            pass  # the kill cuts it off, one way or the other


@pytest.mark.parametrize("victim", ["the API server", "the engine"])
def test_sigkill_while_it_answers_is_followed_by_a_ready_endpoint(lab: Lab, api: Api, victim: str) -> None:
    before = properties(lab, "MainPID", "NRestarts")
    story = Story(api)
    assert story.began.wait(60), "no answer began"
    pid = before["MainPID"] if victim == "the API server" else lab.node("pgrep -o VLLM::EngineCor")
    killed = time.monotonic()
    lab.node(f"kill -KILL {pid}")
    while True:
        now = properties(lab, "MainPID", "NRestarts", "ActiveState", "SubState")
        if now["ActiveState"] == "active" and now["MainPID"] != before["MainPID"]:
            break
        assert time.monotonic() - killed < READY_WITHIN_SECONDS, now
        time.sleep(2)
    print(f"{victim} killed; ready again after {time.monotonic() - killed:.0f} s")
    assert int(now["NRestarts"]) == int(before["NRestarts"]) + 1
    # Active means ready: the very first question is answered, and rightly.
    assert "Paris" in api.ask()
    story.thread.join(60)
    assert not story.thread.is_alive()
    # Nothing of the killed server is left, in the unit or beside it.
    assert len(lab.node("pgrep VLLM::EngineCor").split()) == 1
    assert len(lab.node("pgrep VLLM::Worker").split()) == 1


def test_nonsense_is_not_called_ready_though_health_says_200(lab: Lab) -> None:
    """The real engine with a real checkpoint whose tied embedding was dropped, past all earlier checks."""
    model = lab.node(f"sed -n 's/^model_path=//p' /etc/systemd/system/{UNIT}")
    target = str(damaged(lab, model, "tied")["model_source"])
    python = "/opt/plumbline/engines/current/bin/python"
    try:
        lab.node(
            f"chmod -R a+rX {target}; systemd-run --quiet --unit=nonsense -E VLLM_API_KEY=a-key-of-the-test-alone -E HOME=/tmp "
            "-E HF_HUB_OFFLINE=1 -E VLLM_CPU_KVCACHE_SPACE=1 -E TORCHDYNAMO_DISABLE=1 -E VLLM_NO_USAGE_STATS=1 "
            f"/opt/plumbline/engines/current/bin/vllm serve {target} --served-model-name nonsense --port 8124 "
            "--max-model-len 512 --enforce-eager"
        )
        wait = (
            f"VLLM_API_KEY=a-key-of-the-test-alone {python} -I /opt/plumbline/bin/plumbline-ready wait --model nonsense "
            "--url http://127.0.0.1:8124/v1 --question 'What is the capital of France?' --expected Paris "
            f"--timeout {READY_WITHIN_SECONDS}; echo status $?"
        )
        verdict = lab.node(wait)
        health = lab.node(
            f"{python} -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:8124/health\").status)'"
        )
    finally:
        lab.node(f"systemctl stop nonsense; rm -rf {target}", check=False)
    assert health == "200"
    assert "status 78" in verdict, verdict
    assert "equally likely" in verdict, verdict


@pytest.fixture
def restored(lab: Lab) -> Iterator[None]:
    """Whatever a test did to the endpoint, it serves as the inventory says afterwards."""
    yield
    outcome = lab.playbook(PLAYBOOK)
    assert outcome.returncode == 0, outcome.output[-3000:]


def test_wrong_options_and_a_new_key(lab: Lab, api: Api, restored: None) -> None:
    options = {"enforce_eager": True, "max_num_seqs": 16}
    outcome = lab.playbook(PLAYBOOK, *extra(serving_options={**options, "no_such_option": 1}))
    outcome.refused_with("unrecognized arguments: --no-such-option", "systemd goes on trying")
    lab.playbook(PLAYBOOK, *extra(serving_options={**options, "port": 9})).refused_with(
        "serving_options", "serving_port"
    )
    lab.playbook(PLAYBOOK, *extra(serving_options={**options, "swap_space": 4})).refused_with("kv_offloading_size")
    lab.playbook(PLAYBOOK, *extra(serving_kv_cache_gib=6000)).refused_with("6000 GiB of key-value cache", "weights (")
    lab.playbook(PLAYBOOK, *extra(serving_api_key="too short")).refused_with("20 to 200 characters")

    key = "another-key-of-the-lab-0123456789"
    outcome = lab.playbook(
        PLAYBOOK, *extra(serving_options={**options, "max_num_seqs": 8}, serving_api_key=key), "--diff"
    )
    assert outcome.returncode == 0, outcome.output[-3000:]
    assert re.search(r"\+ *--max-num-seqs \"8\"", outcome.output)
    assert key not in outcome.output.replace(json.dumps(key), "")
    assert "Paris" in api.ask(key)
    with pytest.raises(urllib.error.HTTPError) as refusal:
        api.ask()
    assert refusal.value.code == 401
    assert key not in lab.node(
        f"cat /etc/systemd/system/{UNIT}; cat /proc/$(systemctl show -p MainPID --value {UNIT})/cmdline"
    )
    assert lab.node("stat -c %a:%U /etc/plumbline/serving.env") == "600:root"
