"""A bare HTTP client for the tests of the BMC simulator, and the fixture that starts one."""

from __future__ import annotations

from typing import Any

import requests

from lab.bmc.testing import RunningBmc

TIMEOUT_SECONDS = 20


class Client:
    """Requests to one simulator. The environment's own CA bundle and proxies are left out of it."""

    def __init__(self, bmc: RunningBmc, *, login: bool = True) -> None:
        self.bmc = bmc
        self.http = requests.Session()
        self.http.trust_env = False
        self.http.verify = bmc.ca_file
        if login:
            self.http.auth = (bmc.username, bmc.password)

    def request(self, method: str, path: str, **arguments: Any) -> requests.Response:
        url = path if path.startswith("https:") else self.bmc.base_url + path
        return self.http.request(method, url, timeout=TIMEOUT_SECONDS, **arguments)

    def get(self, path: str, **arguments: Any) -> requests.Response:
        return self.request("GET", path, **arguments)

    def post(self, path: str, body: Any = None, **arguments: Any) -> requests.Response:
        return self.request("POST", path, json={} if body is None else body, **arguments)

    def patch(self, path: str, body: Any, **arguments: Any) -> requests.Response:
        return self.request("PATCH", path, json=body, **arguments)

    def json(self, path: str) -> dict[str, Any]:
        response = self.get(path)
        assert response.status_code == 200, response.text
        return response.json()

    @property
    def system(self) -> str:
        return self.bmc.service.paths.system

    @property
    def bios(self) -> str:
        return self.bmc.service.paths.bios

    @property
    def settings(self) -> str:
        return self.bmc.service.paths.settings

    def stage(self, attributes: dict[str, Any], **arguments: Any) -> requests.Response:
        return self.patch(self.settings, {"Attributes": attributes}, **arguments)

    def reset(self, reset_type: str = "ForceRestart") -> requests.Response:
        return self.post(f"{self.system}/Actions/ComputerSystem.Reset", {"ResetType": reset_type})


def message_keys(response: requests.Response) -> list[str]:
    """Return the keys of the messages in an error body."""
    error = response.json()["error"]
    assert error["code"]
    assert error["message"]
    return [one["MessageId"].rsplit(".", 1)[-1] for one in error["@Message.ExtendedInfo"]]
