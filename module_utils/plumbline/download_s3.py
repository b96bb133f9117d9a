"""Signatures for S3-compatible stores (AWS Signature Version 4), with the standard library.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html; the test holds the example of that page.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Callable
from urllib.parse import quote, urlsplit

_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_ALGORITHM = "AWS4-HMAC-SHA256"


def _now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass(frozen=True)
class S3Keys:
    """Keys of an S3-compatible store; the secret ones are shown nowhere."""

    access_key: str
    secret_key: str = field(repr=False)
    region: str = "us-east-1"
    session_token: str = field(default="", repr=False)
    now: Callable[[], datetime] = field(default=_now, repr=False)

    def sign(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The headers that a request without a body needs besides."""
        parts = urlsplit(url)
        moment = self.now()
        stamp, day = moment.strftime("%Y%m%dT%H%M%SZ"), moment.strftime("%Y%m%d")
        added = {"x-amz-content-sha256": _EMPTY_SHA256, "x-amz-date": stamp}
        if self.session_token:
            added["x-amz-security-token"] = self.session_token
        signed = {"host": parts.netloc, **{name.lower(): value.strip() for name, value in headers.items()}, **added}
        names = ";".join(sorted(signed))
        canonical = "\n".join(
            [
                method,
                parts.path or "/",
                "&".join(sorted(parts.query.split("&"))) if parts.query else "",
                *(f"{name}:{signed[name]}" for name in sorted(signed)),
                "",
                names,
                _EMPTY_SHA256,
            ]
        )
        scope = f"{day}/{self.region}/s3/aws4_request"
        text = "\n".join([_ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = f"AWS4{self.secret_key}".encode()
        for part in (day, self.region, "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        authorization = f"{_ALGORITHM} Credential={self.access_key}/{scope},SignedHeaders={names},Signature={signature}"
        return {**added, "Authorization": authorization}


def object_url(endpoint: str, bucket: str, key: str) -> str:
    """The URL of an object, with the bucket in the path, as every S3-compatible store understands it."""
    return f"{endpoint.rstrip('/')}/{quote(bucket, safe='')}/{quote(key, safe='/-_.~')}"
