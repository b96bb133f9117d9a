#!/usr/bin/python3
"""Requests without a pause, for a while, on the node; prints how many were answered and what failed. Standard library, Python 3.9.

Usage: load_on_node.py SECONDS THREADS MODEL KEY URL...

With one URL every request goes there, as to a gateway. With more, each goes to one that says that it is ready
(`GET /plumbline/status`, asked twice a second), as a gateway would send it. Streaming answers; one that does not come to its end
mark has failed. A request that was refused with 503 before it began is tried again after a moment, once, as Retry-After asks.
SIGTERM ends it early: no new request, and the figures.
"""

from __future__ import annotations

import http.client
import json
import signal
import ssl
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit


def connect(url: str, timeout_seconds: float) -> http.client.HTTPConnection:
    """Return a connection to a base URL; certificates are not what is tested here."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        context = ssl._create_unverified_context()
        return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout_seconds, context=context)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_seconds)


class Load:
    """The requests and what became of them."""

    def __init__(self, seconds: float, model: str, key: str, urls: list[str]) -> None:
        """Begin now."""
        self.began = time.monotonic()
        self.until = self.began + seconds
        self.model, self.key, self.urls = model, key, urls
        self.ready = urls[:1]
        self.lock = threading.Lock()
        self.answered: dict[str, int] = {}
        self.failed: list[list[Any]] = []
        self.longest = 0.0

    def watch(self) -> None:
        """Keep in mind which URLs are ready."""
        while time.monotonic() < self.until:
            ready = [url for url in self.urls if self._is_ready(url)]
            self.ready = ready or self.ready
            time.sleep(0.5)

    @staticmethod
    def _is_ready(url: str) -> bool:
        connection = connect(url, 2)
        try:
            connection.request("GET", "/plumbline/status")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def work(self, number: int) -> None:
        """Send one request after the other."""
        while time.monotonic() < self.until:
            url = self.ready[number % len(self.ready)]
            began = time.monotonic()
            said = self._ask(url)
            if said.startswith("HTTP 503"):
                time.sleep(1)
                said = self._ask(self.ready[number % len(self.ready)])
            with self.lock:
                self.longest = max(self.longest, time.monotonic() - began)
                if said:
                    self.failed.append([round(time.monotonic() - self.began, 1), url, said])
                else:
                    self.answered[url] = self.answered.get(url, 0) + 1
            if said:
                time.sleep(0.2)

    def _ask(self, url: str) -> str:
        """Return what was wrong, or nothing."""
        body = {"model": self.model, "max_tokens": 12, "stream": True, "ignore_eos": True}
        body["messages"] = [{"role": "user", "content": "Tell a story."}]
        connection = connect(url, 120)
        try:
            headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
            connection.request("POST", urlsplit(url).path + "/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            return repr(error)
        finally:
            connection.close()
        if response.status != 200:
            return f"HTTP {response.status}: {text[:100]!r}"
        return "" if b"data: [DONE]" in text else f"cut off after {len(text)} bytes"


def main() -> None:
    """Run and print one JSON object."""
    seconds, threads, model, key, *urls = sys.argv[1:]
    load = Load(float(seconds), model, key, urls)
    if len(urls) > 1:
        threading.Thread(target=load.watch, daemon=True).start()

    def end(_signal: int, _frame: Any) -> None:
        load.until = 0.0

    signal.signal(signal.SIGTERM, end)
    workers = [threading.Thread(target=load.work, args=(number,)) for number in range(int(threads))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(json.dumps({"answered": load.answered, "failed": load.failed, "longest_seconds": round(load.longest, 1)}))


if __name__ == "__main__":
    main()
