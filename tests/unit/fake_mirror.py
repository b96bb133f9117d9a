"""A web server for tests of downloads: files with Range, and the faults that mirrors have. Also answers like the Hugging Face hub."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Mirror:
    """What the server holds and does. Paths begin with a slash. `cut` ends the first answers of a path after so many bytes."""

    files: dict[str, bytes] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    cut: dict[str, list[int]] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    head: bool = True
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    url: str = ""

    def repository(self, name: str, commit: str, files: dict[str, bytes], large: set[str]) -> None:
        """Hold a repository as the hub does: its description and its files at a commit."""
        siblings, tree = [], []
        for path, content in files.items():
            git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": git}
            if path in large:
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            siblings.append(entry)
            # What the hub's own client asks for.
            listed: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": git}
            if path in large:
                listed["lfs"] = {"oid": entry["lfs"]["sha256"], "size": len(content), "pointerSize": 134}
            tree.append(listed)
            self.files[f"/{name}/resolve/{commit}/{path}"] = content
        self.files[f"/api/models/{name}/tree/{commit}"] = json.dumps(tree).encode()
        answer = {"id": name, "sha": commit, "siblings": siblings, "tags": [], "private": False}
        self.files[f"/api/models/{name}/revision/{commit}"] = json.dumps(answer).encode()

    def asked(self, path: str, method: str = "GET") -> list[dict[str, str]]:
        """Headers of the requests of a path."""
        return [headers for found, at, headers in self.requests if at == path and found == method]


@contextmanager
def serve(mirror: Mirror, certificate: tuple[Path, Path] | None = None) -> Iterator[Mirror]:
    """Answer until the end of the block; by TLS with a certificate and its key."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(True)

        def do_HEAD(self) -> None:
            if mirror.head:
                self._answer(False)
            else:
                self._status(403)

        def _status(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _answer(self, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            mirror.requests.append((self.command, path, headers))
            if mirror.statuses.get(path):
                self._status(mirror.statuses[path].pop(0))
                return
            if path in mirror.redirects:
                self.send_response(302)
                self.send_header("Location", mirror.redirects[path])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if path not in mirror.files:
                self._status(404)
                return
            content = mirror.files[path]
            start = 0
            if mirror.ranges and headers.get("range", "").startswith("bytes="):
                start = int(headers["range"][len("bytes=") :].partition("-")[0])
                if start >= len(content):
                    self._status(416)
                    return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", path.split("/resolve/")[-1].partition("/")[0])
            self.end_headers()
            if not body:
                return
            limit = mirror.cut[path].pop(0) if mirror.cut.get(path) else len(content)
            self.wfile.write(content[start : start + limit])
            if start + limit < len(content):
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    mirror.url = f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"
    try:
        yield mirror
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
