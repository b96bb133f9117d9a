"""A firmware image as the body of a request, read while it is sent: images are hundreds of MB and hosts are many."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from .redfish_connection import RedfishError


class UploadBody:
    """What `requests` streams: bytes before the file, the file, bytes after it. At most one block is in memory.

    Use it in a `with` statement. `sent_bytes` says how far it came, `deadline` (a `time.monotonic()` value) ends a transfer that
    crawls.
    """

    def __init__(
        self, file: str, size: int, head: bytes = b"", tail: bytes = b"", deadline: float = float("inf")
    ) -> None:
        """Open the file, whose size was found when its checksum was."""
        self.file = file
        self.size = size
        self.sent_bytes = 0
        self._head, self._tail, self._deadline = head, tail, deadline
        self._stream: IO[bytes] | None = None

    def __enter__(self) -> UploadBody:
        """Open the file."""
        try:
            self._stream = Path(self.file).open("rb")
        except OSError as error:
            raise RedfishError(
                f"The image {self.file} cannot be read any more: {error.strerror}; put it back"
            ) from None
        return self

    def __exit__(self, *_exception: object) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()

    def __len__(self) -> int:
        """Length of the whole body in bytes, for Content-Length."""
        return len(self._head) + self.size + len(self._tail)

    @property
    def complete(self) -> bool:
        """Whether all of it was handed out."""
        return self.sent_bytes == len(self)

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes, empty at the end.

        Raises:
            RedfishError: the file has become shorter or longer since its checksum was taken, or the time is over.
        """
        if time.monotonic() > self._deadline:
            raise RedfishError(
                f"The upload of {self.file} was not done in the time that firmware_update_timeout_seconds allows:"
                f" {self.sent_bytes} of {len(self)} bytes were sent; raise it, or look at the network to the BMC"
            )
        data = self._next(count if count and count > 0 else 64 * 1024)
        self.sent_bytes += len(data)
        return data

    def _next(self, count: int) -> bytes:
        place = self.sent_bytes
        if place < len(self._head):
            return self._head[place : place + count]
        left = len(self._head) + self.size - place
        if left > 0 and self._stream is not None:
            data = self._stream.read(min(count, left))
            if not data or (len(data) == left and self._stream.read(1)):
                raise RedfishError(
                    f"The image {self.file} changed while it was uploaded: expected the {self.size} bytes that its checksum"
                    " stands for; the BMC got a part of it and drops it. Run again when nothing writes to the file"
                )
            return data
        start = place - len(self._head) - self.size
        return self._tail[start : start + count]


def multipart(file: str, size: int, parameters: Mapping[str, Any], deadline: float) -> tuple[UploadBody, str]:
    """The body of a multipart push (DSP0266: `UpdateParameters`, then `UpdateFile`), and its content type."""
    boundary = uuid.uuid4().hex
    name = Path(file).name.replace('"', "_").encode("ascii", "replace").decode()
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="UpdateParameters"\r\nContent-Type: application/json\r\n\r\n'
        f"{json.dumps(parameters)}\r\n"
        f'--{boundary}\r\nContent-Disposition: form-data; name="UpdateFile"; filename="{name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    tail = f"\r\n--{boundary}--\r\n"
    body = UploadBody(file, size, head.encode(), tail.encode(), deadline)
    return body, f"multipart/form-data; boundary={boundary}"
