"""Ask a Prometheus over its HTTP API. Standard library only: it runs on the node."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlencode

Json = dict[str, Any]
_SECONDS = 10
# What a Prometheus answers here is a few hundred kilobytes; anything else is not one.
_LARGEST = 64 << 20


class PrometheusError(Exception):
    """One sentence on what Prometheus did not answer."""


class Prometheus:
    """One Prometheus at an address and a port."""

    def __init__(self, address: str, port: int) -> None:
        """Take where it listens; nothing is opened yet."""
        self.address = address
        self.port = port

    def get(self, path: str, **query: str) -> Any:
        """Return the field `data` of an answer of the API.

        :raises PrometheusError: where there is none.
        """
        url = f"/api/v1/{path}" + (f"?{urlencode(query)}" if query else "")
        text = self._read(url)
        try:
            answer = json.loads(text)
            if answer["status"] != "success":
                raise PrometheusError(f"expected Prometheus to answer {url}, found {str(answer.get('error'))[:200]}")
            return answer["data"]
        except (ValueError, KeyError, TypeError):
            raise PrometheusError(
                f"expected Prometheus on {self.address}:{self.port}, found something that answers {url} with no JSON of its API"
            ) from None

    def _read(self, url: str) -> bytes:
        connection = http.client.HTTPConnection(self.address, self.port, timeout=_SECONDS)
        try:
            connection.request("GET", url, headers={"Connection": "close"})
            return connection.getresponse().read(_LARGEST)
        except (OSError, http.client.HTTPException) as error:
            raise PrometheusError(
                f"expected Prometheus to answer on {self.address}:{self.port}, found that it does not ({error}): "
                "journalctl -u plumbline-prometheus"
            ) from None
        finally:
            connection.close()

    def targets(self) -> list[Json]:
        """What it scrapes, with the health of each."""
        return list(self.get("targets", state="active")["activeTargets"])

    def rules(self) -> list[Json]:
        """Rules that are loaded."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def firing(self) -> list[Json]:
        """Alerts that fire now."""
        return [alert for alert in self.get("alerts")["alerts"] if alert["state"] == "firing"]

    def vector(self, expression: str) -> list[Json]:
        """What an expression gives now: `metric` (labels) and `value` of each."""
        return list(self.get("query", query=expression)["result"])

    def metric_names(self, selector: str) -> set[str]:
        """Names of the metrics that have series with *selector* now."""
        return set(self.get("label/__name__/values", **{"match[]": selector}))

    def own_metrics(self) -> str:
        """Its own metrics, as text."""
        return self._read("/metrics").decode("utf-8", errors="replace")
