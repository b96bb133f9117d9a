"""What a source names: the files to bring in, each with the hash that it must have. Standard library only.

https://HOST/DIR/          files of an inventory's list, or of the mirror's SHA256SUMS, which is pinned by its own SHA-256
https://HOST/NAME.gguf     one file
s3://BUCKET/PREFIX         the same from an S3-compatible store
hf://ORG/NAME@COMMIT       a repository of the Hugging Face hub at a commit; a branch may move and is refused
hf://ORG/NAME@COMMIT/NAME.gguf    one file of it
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Optional
from urllib.parse import quote, urlsplit

from .download_file import Item
from .download_s3 import S3Keys, object_url
from .download_web import DownloadError, Signer, Web, refuse_url, shown

SUMS = "SHA256SUMS"
_SHA256 = re.compile(r"^[0-9a-fA-F]{64}$")
_COMMIT = re.compile(r"^[0-9a-f]{40}$")
_SUMS_LINE = re.compile(r"^([0-9a-fA-F]{64}) [ *](.+)$")
_HUB_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$")
# What of a repository is a checkpoint; pictures, code and the like stay where they are.
_TAKEN = ("*.json", "*.safetensors*", "*.txt", "*.model", "*.jinja", "*.tiktoken", "LICENSE*", "NOTICE*", "README.md")
_PICKLED = ("*.bin", "*.pt", "*.pth")
REMOTE = re.compile(r"^(https?|s3|hf)://")


@dataclass(frozen=True)
class Source:
    """Where a checkpoint comes from, and what pins its bytes. The secrets are shown nowhere."""

    location: str
    files: Mapping[str, str] = field(default_factory=dict)
    urls: Mapping[str, str] = field(default_factory=dict, repr=False)
    sums_sha256: str = ""
    include: Sequence[str] = ()
    token: str = field(default="", repr=False)
    hub_endpoint: str = "https://huggingface.co"
    s3_endpoint: str = ""
    s3_keys: Optional[S3Keys] = None  # noqa: UP045 - the node's Python may be 3.9

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, before the network is asked."""
        if not REMOTE.match(self.location):
            raise DownloadError(
                f"model_source is {self.location}: expected https://, http://, s3:// or hf://, found another; "
                "a path is used as it is and not downloaded."
            )
        for name, digest in self.files.items():
            safe_name(name, "model_source_files")
            if not _SHA256.match(str(digest)):
                raise DownloadError(
                    f"model_source_files: expected the SHA-256 (64 hex digits) of {name}, found {str(digest)!r}."
                )
        if self.sums_sha256 and not _SHA256.match(self.sums_sha256):
            raise DownloadError(
                f"model_source_sums_sha256 is {self.sums_sha256!r}: expected the 64 hex digits of the SHA-256 of {SUMS} itself."
            )
        for name, url in self.urls.items():
            if name not in self.files:
                raise DownloadError(
                    f"model_source_urls names {name}, which model_source_files does not: add its SHA-256 there."
                )
            refuse_url(url)

    @property
    def single(self) -> bool:
        """Whether it is one file, and not a directory."""
        return urlsplit(self.location).path.endswith(".gguf")


def items(source: Source, web: Web) -> list[Item]:
    """The files of a source. Raises DownloadError."""
    if source.location.startswith("hf://"):
        return _hub(source, web)
    sign: Optional[Signer] = None  # noqa: UP045
    headers = {"Authorization": f"Bearer {source.token}"} if source.token else {}
    if source.location.startswith("s3://"):
        bucket, prefix, endpoint = _bucket(source)
        if source.s3_keys:
            sign, headers = source.s3_keys.sign, {}

        def place(name: str) -> str:
            return object_url(endpoint, bucket, f"{prefix}/{name}".lstrip("/"))
    else:
        refuse_url(source.location)
        base = source.location.rstrip("/")
        if urlsplit(base).query and not source.urls and not source.single:
            raise DownloadError(
                f"{shown(base)}: a directory's URL takes no query; give signed URLs file by file in model_source_urls (a vault)."
            )

        def place(name: str) -> str:
            return f"{base}/{quote(name)}"

    if source.single:
        name = PurePosixPath(urlsplit(source.location).path).name
        if set(source.files) != {name}:
            raise DownloadError(
                f"{shown(source.location)}: expected the SHA-256 of {name} (model_source_sha256), found none."
            )
        url = source.location if source.location.startswith("http") else place("").rstrip("/")
        return [Item(name, url, source.files[name].lower(), headers=headers, sign=sign)]
    hashes = dict(source.files) or _sums(source, web, place(SUMS), headers, sign)
    wanted = _included(source, hashes)
    found = []
    for name in wanted:
        # A signed URL carries its own right, and gets no other.
        own = name in source.urls
        url = source.urls[name] if own else place(name)
        found.append(Item(name, url, hashes[name].lower(), headers={} if own else headers, sign=None if own else sign))
    return found


def safe_name(name: str, where: str) -> str:
    """The name again; raises DownloadError for one that would lie outside the directory."""
    parts = PurePosixPath(name).parts
    if (
        not parts
        or name.startswith(("/", "~"))
        or ".." in parts
        or "\\" in name
        or "\0" in name
        or PurePosixPath(name).as_posix() != name
    ):
        raise DownloadError(
            f"{where} names the file {name!r}, which does not lie in its directory: do not use this source."
        )
    return name


def _sums(source: Source, web: Web, url: str, headers: Mapping[str, str], sign: Optional[Signer]) -> dict[str, str]:  # noqa: UP045
    if not source.sums_sha256:
        raise DownloadError(
            f"{shown(source.location)}: nothing pins its bytes; give the SHA-256 of each file in model_source_files, "
            f"or that of the mirror's {SUMS} in model_source_sums_sha256."
        )
    data = web.text(url, headers, sign)
    digest = hashlib.sha256(data).hexdigest()
    if digest != source.sums_sha256.lower():
        raise DownloadError(
            f"{shown(url)}: expected the SHA-256 {source.sums_sha256.lower()} (model_source_sums_sha256), found {digest}; "
            "the mirror's list is not the one that was pinned, and nothing was downloaded."
        )
    hashes = {}
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
        match = _SUMS_LINE.match(line)
        if not match:
            raise DownloadError(
                f"{shown(url)}: line {number} is {line[:80]!r}, expected SHA-256, two blanks and a name (sha256sum)."
            )
        name = match[2][2:] if match[2].startswith("./") else match[2]
        hashes[safe_name(name, SUMS)] = match[1]
    if not hashes:
        raise DownloadError(f"{shown(url)}: expected a list of files, found an empty one.")
    return hashes


def _bucket(source: Source) -> tuple[str, str, str]:
    parts = urlsplit(source.location)
    region = source.s3_keys.region if source.s3_keys else "us-east-1"
    endpoint = source.s3_endpoint or f"https://s3.{region}.amazonaws.com"
    refuse_url(endpoint)
    if not parts.netloc:
        raise DownloadError(f"model_source is {source.location}: expected s3://BUCKET/PREFIX, found no bucket.")
    return parts.netloc, parts.path.strip("/"), endpoint


def _hub(source: Source, web: Web) -> list[Item]:
    name, at, rest = source.location[len("hf://") :].partition("@")
    revision, _, one = rest.partition("/")
    if not _HUB_NAME.match(name):
        raise DownloadError(
            f"model_source is {source.location}: expected hf://ORG/NAME@COMMIT, found no name of a repository."
        )
    if not at or not _COMMIT.match(revision) or (one and not source.single):
        raise DownloadError(
            f"model_source is {source.location}: expected the commit (40 hex digits) after @, found {rest or 'none'!r}; "
            "a branch or tag may name other bytes tomorrow. The page 'History' of the repository shows the commit."
        )
    endpoint = source.hub_endpoint.rstrip("/")
    refuse_url(endpoint)
    headers = {"Authorization": f"Bearer {source.token}"} if source.token else {}
    url = f"{endpoint}/api/models/{name}/revision/{revision}"
    data = web.text(f"{url}?blobs=true", headers)
    try:
        answer = json.loads(data)
        commit, listed = answer["sha"], [_hub_file(entry) for entry in answer["siblings"]]
    except (ValueError, KeyError, TypeError):
        raise DownloadError(
            f"{shown(url)}: expected the hub's description of the repository, found something else."
        ) from None
    if commit != revision:
        raise DownloadError(f"{shown(url)}: asked for the commit {revision}, the hub answered with {commit}.")
    by_name = {safe_name(entry["name"], name): entry for entry in listed}
    if one:
        return _one_of_hub(source, one, by_name, f"{endpoint}/{name}/resolve/{revision}/{quote(one)}", headers)
    missing = sorted(set(source.files) - set(by_name))
    if missing:
        raise DownloadError(
            f"{source.location}: model_source_files names {missing[0]}, which the commit does not hold."
        )
    found = []
    for file in _included(source, by_name):
        entry = by_name[file]
        pinned = str(source.files.get(file, "")).lower()
        if pinned and entry["sha256"] and pinned != entry["sha256"]:
            raise DownloadError(
                f"{source.location}: expected the SHA-256 {pinned} of {file} (model_source_files), the hub has {entry['sha256']}."
            )
        where = f"{endpoint}/{name}/resolve/{revision}/{quote(file)}"
        found.append(Item(file, where, pinned or entry["sha256"], entry["git"], entry["size"], headers))
    return found


def _one_of_hub(
    source: Source, name: str, listed: Mapping[str, Mapping[str, Any]], url: str, headers: dict[str, str]
) -> list[Item]:
    if name not in listed:
        raise DownloadError(
            f"{source.location}: the commit does not hold {name}; look at the repository's list of files."
        )
    entry = listed[name]
    pinned = str(source.files.get(PurePosixPath(name).name, "")).lower()
    return [Item(PurePosixPath(name).name, url, pinned or entry["sha256"], entry["git"], entry["size"], headers)]


def _hub_file(entry: Mapping[str, Any]) -> dict[str, Any]:
    large = entry.get("lfs") or {}
    sha256, git = str(large.get("sha256", "")), str(entry.get("blobId") or "")
    if not (_SHA256.match(sha256) or _COMMIT.match(git)):
        raise ValueError
    return {
        "name": str(entry["rfilename"]),
        "sha256": sha256,
        "git": git,
        "size": int(large.get("size") or entry.get("size") or 0),
    }


def _included(source: Source, names: Mapping[str, Any]) -> list[str]:
    """The names that are wanted, sorted. Where safetensors are, pickles of the same weights are not fetched."""
    if source.include:
        wanted = [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in source.include)]
        if not wanted:
            raise DownloadError(
                f"{shown(source.location)}: no file of it matches model_source_include ({', '.join(source.include)})."
            )
        return sorted(wanted)
    if source.files:
        return sorted(source.files)
    patterns = _TAKEN if any(".safetensors" in name for name in names) else (*_TAKEN, *_PICKLED)
    wanted = [
        name
        for name in names
        if name != SUMS and any(fnmatch.fnmatch(name.rpartition("/")[2], pattern) for pattern in patterns)
    ]
    if not wanted:
        raise DownloadError(
            f"{shown(source.location)}: it holds no file of a checkpoint; name the files in model_source_include."
        )
    return sorted(wanted)
