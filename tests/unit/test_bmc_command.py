"""`python -m lab.bmc`: one clear sentence for bad input, a clean end on SIGTERM, state kept."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from lab.bmc import tls
from lab.bmc.config import Config, ConfigError, check, load, password_of
from lab.bmc.state import State, StateError

START_SECONDS = 60


def arguments(*options: str) -> list[str]:
    return [sys.executable, "-m", "lab.bmc", *options]


def refused(checkout: Path, *options: str, **environment: str) -> str:
    result = subprocess.run(
        arguments(*options),
        cwd=checkout,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


@contextmanager
def started(checkout: Path, *options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        arguments(*options),
        cwd=checkout,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "https://" in line, line
        yield process, line.split("https://")[1].split("/")[0]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=START_SECONDS)


def test_it_serves_from_a_config_file_ends_on_sigterm_and_keeps_its_state(checkout: Path, tmp_path: Path) -> None:
    ca_file, cert_file, key_file = tls.generate(tmp_path, ["127.0.0.1"])
    (tmp_path / "password").write_text("secret\n")
    config = tmp_path / "bmc.json"
    config.write_text(
        json.dumps(
            {
                "listen": "127.0.0.1",
                "port": 0,
                "cert_file": str(cert_file),
                "key_file": str(key_file),
                "username": "admin",
                "password_file": str(tmp_path / "password"),
                "state_file": str(tmp_path / "state.json"),
                "profile": "ieit-nf8260g7",
                "power_command": [],
                "node": "node1",
            }
        )
    )
    for pending in ({}, {"WorkLdConfig": "IO_SENSITIVE"}):
        with started(checkout, "--config", str(config)) as (process, address):
            http = requests.Session()
            http.trust_env, http.verify, http.auth = False, str(ca_file), ("admin", "secret")
            url = f"https://{address}/redfish/v1/Systems/1"
            assert http.get(url, timeout=20).json()["HostName"] == "node1"
            assert http.get(f"{url}/Bios/Settings", timeout=20).json()["Attributes"] == pending
            body = {"Attributes": {"WorkLdConfig": "IO_SENSITIVE"}}
            assert http.patch(f"{url}/Bios/Settings", json=body, timeout=20).status_code == 200
            http.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=START_SECONDS) == 0
    assert json.loads((tmp_path / "state.json").read_text())["bios"]["pending"] == {"WorkLdConfig": "IO_SENSITIVE"}
    assert not list(tmp_path.glob(".state.json.*"))


def test_it_serves_without_a_config_file(checkout: Path, tmp_path: Path) -> None:
    options = ("--profile", "dell-r750", "--port", "0", "--generate-certificate", str(tmp_path / "tls"))
    with started(checkout, *options, BMC_PASSWORD="secret") as (process, address):
        http = requests.Session()
        http.trust_env, http.verify = False, str(tmp_path / "tls" / "ca.pem")
        assert http.get(f"https://{address}/redfish/v1/", timeout=20).json()["Vendor"] == "Dell"
        http.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=START_SECONDS) == 0
    assert (tmp_path / "tls" / "bmc.key").stat().st_mode & 0o077 == 0


def test_it_serves_a_fleet(checkout: Path, tmp_path: Path) -> None:
    options = ("--port", "0", "--count", "3", "--generate-certificate", str(tmp_path), "--state-file")
    with started(checkout, *options, str(tmp_path / "state"), BMC_PASSWORD="secret") as (process, address):
        assert process.stdout is not None
        addresses = [address, *(process.stdout.readline().split("https://")[1].split("/")[0] for _ in range(2))]
        http = requests.Session()
        http.trust_env, http.verify, http.auth = False, str(tmp_path / "ca.pem"), ("admin", "secret")
        path = "/redfish/v1/Systems/1/Bios/Settings"
        body = {"Attributes": {"WorkLdConfig": "IO_SENSITIVE"}}
        assert http.patch(f"https://{addresses[1]}{path}", json=body, timeout=20).status_code == 200
        seen = [http.get(f"https://{one}{path}", timeout=20).json()["Attributes"] for one in addresses]
        assert seen == [{}, body["Attributes"], {}]
        names = [http.get(f"https://{one}/redfish/v1/Systems/1", timeout=20).json()["HostName"] for one in addresses]
        assert names == ["node1", "node2", "node3"]
        http.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=START_SECONDS) == 0
    assert len(list(tmp_path.glob("state.[123]"))) == 3


def test_a_fleet_may_be_of_several_kinds(checkout: Path, tmp_path: Path) -> None:
    options = ("--profile", "dell-r750,hpe-dl380a-gen11", "--count", "3", "--port", "0")
    with started(checkout, *options, "--generate-certificate", str(tmp_path), BMC_PASSWORD="secret") as (process, _):
        assert process.stdout is not None
        assert [process.stdout.readline().split("(")[1].strip() for _ in range(2)] == [
            "hpe-dl380a-gen11)",
            "dell-r750)",
        ]


def test_a_profile_that_cannot_be_used_is_one_sentence(checkout: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    for text, reason in (
        ('{"extends": "dell-r750", "quirks": {"shap": "flat"}}', "did you mean shape?"),
        ('{"extends": "dell-r750", "memory": {"template": 3}}', "compare it with those that come with the simulator"),
    ):
        mine.write_text(text)
        options = ("--profile", str(mine), "--port", "0", "--generate-certificate", str(tmp_path))
        assert reason in refused(checkout, *options, BMC_PASSWORD="x")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--state-file", "/proc/none/state"), "cannot be written"),
        (("--post-seconds", "-1"), "--post-seconds must be 0 or more"),
        (("--listen", "203.0.113.9"), "Cannot assign requested address; give --listen"),
        (("--listen", "bmc.invalid"), "cannot be used"),
        (("--password-file", "/proc/none/password"), "password file /proc/none/password cannot be read"),
        (("--generate-certificate", "/proc/none"), "No certificate can be written"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    checkout: Path, tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    usual = ("--port", "0", "--generate-certificate", str(tmp_path))
    environment = {"BMC_PASSWORD": ""} if "--password-file" in options else {"BMC_PASSWORD": "x"}
    assert reason in refused(checkout, *usual, *options, **environment)


def test_it_comes_back_after_kill_9_in_the_middle_of_everything(checkout: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    options = ("--port", "0", "--generate-certificate", str(tmp_path), "--state-file", str(state))
    path, body = "/redfish/v1/Systems/1/Bios/Settings", {"Attributes": {"WorkLdConfig": "IO_SENSITIVE"}}
    http = requests.Session()
    http.trust_env, http.verify, http.auth = False, str(tmp_path / "ca.pem"), ("admin", "secret")
    with started(checkout, *options, "--post-seconds", "60", BMC_PASSWORD="secret") as (process, address):
        assert http.patch(f"https://{address}{path}", json=body, timeout=20).status_code == 200
        reset = f"https://{address}/redfish/v1/Systems/1/Actions/ComputerSystem.Reset"
        assert http.post(reset, json={"ResetType": "ForceRestart"}, timeout=20).status_code == 204
        process.kill()
        process.wait(timeout=START_SECONDS)
    assert json.loads(state.read_text())["bios"]["pending"] == body["Attributes"]
    (tmp_path / ".state.json.half.tmp").write_text(state.read_text()[:100])  # it was killed while it wrote
    with started(checkout, *options, "--post-seconds", "0.05", BMC_PASSWORD="secret") as (process, address):
        assert not (tmp_path / ".state.json.half.tmp").exists()
        bios = f"https://{address}/redfish/v1/Systems/1/Bios"
        deadline = time.monotonic() + START_SECONDS
        while http.get(bios, timeout=20).json()["Attributes"]["WorkLdConfig"] != "IO_SENSITIVE":
            assert time.monotonic() < deadline, "the restart that was cut short was not finished"
        http.close()


def test_a_fleet_that_does_not_fit_is_refused(checkout: Path, tmp_path: Path) -> None:
    line = refused(
        checkout, "--count", "9", "--port", "65530", "--generate-certificate", str(tmp_path), BMC_PASSWORD="x"
    )
    assert "do not fit" in line


def test_a_port_in_use_is_one_sentence(checkout: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(checkout, "--port", str(port), "--generate-certificate", str(tmp_path), BMC_PASSWORD="x")
    assert f"Port {port} on 127.0.0.1 cannot be used: the address is in use" in line


def test_a_config_file_that_is_missing_or_broken_is_one_sentence(checkout: Path, tmp_path: Path) -> None:
    assert "cannot be read" in refused(checkout, "--config", str(tmp_path / "none.json"))
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    assert "is not JSON" in refused(checkout, "--config", str(broken))
    assert "No certificate is set" in refused(checkout, BMC_PASSWORD="x")
    with_certificate = ("--generate-certificate", str(tmp_path))
    assert "No password is set" in refused(checkout, *with_certificate, BMC_PASSWORD="")
    assert "There is no profile" in refused(checkout, *with_certificate, "--profile", "vax", BMC_PASSWORD="x")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ([], "expected a JSON object"),
        ({"prot": 1}, "unknown key 'prot'"),
        ({"port": "8443"}, "port must be an integer"),
        ({"port": True}, "port must be an integer"),
        ({"port": 70000}, "port must be 0 to 65535"),
        ({"power_command": "podman"}, "power_command must be a list"),
        ({"power_command": ["podman", 1]}, "list of non-empty strings"),
        ({"post_seconds": -1}, "must not be negative"),
        ({"session_limit": 0}, "at least 1"),
        ({"cert_file": "x.pem"}, "go together"),
        ({"username": None}, "username must be a string"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_key(data: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check(data, "The configuration")


def test_a_configuration_may_leave_out_what_has_a_default(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"state_file": null, "port": 0}')
    assert load(path).profile == "ieit-nf8260g7"


def test_passwords_come_from_a_file_that_must_hold_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BMC_PASSWORD", "from environment")
    assert password_of(Config()) == "from environment"
    path = tmp_path / "password"
    with pytest.raises(ConfigError, match="cannot be read"):
        password_of(Config(password_file=str(path)))
    path.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        password_of(Config(password_file=str(path)))
    path.write_text("from file\n")
    assert password_of(Config(password_file=str(path))) == "from file"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read"),
        ("[]", "has not the format"),
        ('{"format": 1, "profile": "x"}', "belongs to the profile 'x'"),
    ],
)
def test_a_state_file_that_is_not_ours_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(StateError, match=reason):
        State("ieit-nf8260g7", path)
    assert path.read_text() == text


def test_a_state_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "state.json"
    state = State("p", path)
    state.section("bios", {"active": {}})
    state.save()
    before = path.read_text()
    state.data["bios"]["active"] = object()  # cannot be written
    with pytest.raises(TypeError):
        state.save()
    assert path.read_text() == before
    assert [one.name for one in path.parent.iterdir()] == ["state.json"]
