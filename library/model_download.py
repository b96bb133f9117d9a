#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: a checkpoint from a mirror or the hub, whole and verified."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_download
short_description: Bring a checkpoint to the node from a mirror, an S3-compatible store or the Hugging Face hub
description:
  - Downloads the files of a checkpoint, each checked against a hash that is known beforehand. What is not pinned is not fetched.
  - Streams to the disk, goes on by C(Range) where an earlier run stopped, tries again after transient failures with growing waits, and
    looks for free disk first. The destination gets its name by one rename when everything is whole.
  - TLS is verified. Proxies are those of the environment (C(HTTPS_PROXY), C(NO_PROXY)). Tokens and keys are sent over https only, and never
    to the host of a redirect.
author:
  - The Plumbline founders
options:
  source:
    description:
      - V(https://HOST/DIR/), V(https://HOST/NAME.gguf), V(s3://BUCKET/PREFIX) or V(hf://ORG/NAME@COMMIT).
      - V(hf://ORG/NAME@COMMIT/NAME.gguf) is one file of it. A commit of the hub is 40 hex digits. A branch may name other bytes tomorrow
        and is refused.
    type: str
    required: true
  destination:
    description: Directory on the node, or the file for a source that is one file.
    type: path
    required: true
  files:
    description: SHA-256 by name of each file that is wanted. With the hub it may be empty, or amend what the hub says.
    type: dict
    default: {}
  urls:
    description: Signed URL by name, for files of O(files) that are not read from O(source).
    type: dict
    default: {}
  sums_sha256:
    description: SHA-256 of the mirror's file C(SHA256SUMS), which then says what there is. For a mirror without O(files).
    type: str
    default: ""
  include:
    description: Patterns of names that are wanted. Empty takes what a checkpoint consists of, and no pickle where safetensors are.
    type: list
    elements: str
    default: []
  token:
    description: Bearer token of the mirror or the hub.
    type: str
    default: ""
  hub_endpoint:
    description: Address of the hub, or of a mirror that answers like it.
    type: str
    default: https://huggingface.co
  s3_endpoint:
    description: Address of the S3-compatible store. Empty is Amazon's of O(s3_region).
    type: str
    default: ""
  s3_region:
    description: Region that the signature names.
    type: str
    default: us-east-1
  s3_access_key:
    description: Access key. Empty reads without a signature.
    type: str
    default: ""
  s3_secret_key:
    description: Its secret.
    type: str
    default: ""
  s3_session_token:
    description: Session token of temporary keys.
    type: str
    default: ""
  ca_file:
    description: PEM file on the node with the CA that signed the server's certificate. Empty is the system's.
    type: str
    default: ""
  validate_certs:
    description: Whether the server's certificate is checked.
    type: bool
    default: true
  timeout_seconds:
    description: Limit for a connection and for each read, in seconds.
    type: int
    default: 60
  attempts:
    description: How often each file is tried.
    type: int
    default: 5
attributes:
  check_mode:
    description: Says what would be fetched; the mirror's or hub's list is read for that.
    support: full
  diff_mode:
    description: Shows the files before and after.
    support: full
"""

EXAMPLES = r"""
- name: The checkpoint is on the node
  plumbline.plumbline.model_download:
    source: hf://HuggingFaceTB/SmolLM2-135M-Instruct@12fd25f77366fa6b3b4b768ec3050bf629380bac
    destination: /opt/plumbline/models/.staging/smollm2
    token: "{{ model_source_token }}"

- name: The checkpoint comes from the internal mirror, pinned by the hash of its list
  plumbline.plumbline.model_download:
    source: https://mirror.example/models/yuan2-m32/
    destination: /opt/plumbline/models/.staging/yuan2-m32
    sums_sha256: 6f1c5b8e0f0ad9a2b6a7c5c9d6f3b1a4e2d8f7c6b5a49382716f5e4d3c2b1a09
    ca_file: /etc/ssl/certs/internal-ca.pem
"""

RETURN = r"""
path:
  description: Where the checkpoint is.
  returned: always
  type: str
  sample: /opt/plumbline/models/.staging/smollm2
files:
  description: What there is or would be kept, by name.
  returned: always
  type: dict
  sample: {"config.json": {"sha256": "9f8e7d6c5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a39281706f5e4d3c2b1a0", "size_bytes": 861}}
size_bytes:
  description: Size of these files in bytes.
  returned: always
  type: int
  sample: 271313568
downloaded_bytes:
  description: Bytes that came over the network in this run.
  returned: always
  type: int
  sample: 271313568
resumed_bytes:
  description: Bytes that were there of files that an earlier run had begun.
  returned: always
  type: int
  sample: 0
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.download_s3 import S3Keys
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.download_sources import Source
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.download_web import DownloadError, Web
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.model_downloads import download


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "required": True},
            "destination": {"type": "path", "required": True},
            "files": {"type": "dict", "default": {}},
            "urls": {"type": "dict", "default": {}, "no_log": True},
            "sums_sha256": {"type": "str", "default": ""},
            "include": {"type": "list", "elements": "str", "default": []},
            "token": {"type": "str", "default": "", "no_log": True},
            "hub_endpoint": {"type": "str", "default": "https://huggingface.co"},
            "s3_endpoint": {"type": "str", "default": ""},
            "s3_region": {"type": "str", "default": "us-east-1"},
            "s3_access_key": {"type": "str", "default": "", "no_log": False},
            "s3_secret_key": {"type": "str", "default": "", "no_log": True},
            "s3_session_token": {"type": "str", "default": "", "no_log": True},
            "ca_file": {"type": "str", "default": ""},
            "validate_certs": {"type": "bool", "default": True},
            "timeout_seconds": {"type": "int", "default": 60},
            "attempts": {"type": "int", "default": 5},
        },
        required_together=[("s3_access_key", "s3_secret_key")],
        supports_check_mode=True,
    )
    given = module.params
    keys = None
    if given["s3_access_key"]:
        keys = S3Keys(given["s3_access_key"], given["s3_secret_key"], given["s3_region"], given["s3_session_token"])
    try:
        source = Source(
            location=given["source"],
            files={name: str(digest) for name, digest in given["files"].items()},
            urls={name: str(url) for name, url in given["urls"].items()},
            sums_sha256=given["sums_sha256"],
            include=given["include"],
            token=given["token"],
            hub_endpoint=given["hub_endpoint"],
            s3_endpoint=given["s3_endpoint"],
            s3_keys=keys,
        )
        web = Web(given["ca_file"], given["validate_certs"], given["timeout_seconds"], max(1, given["attempts"]))
        result = download(source, Path(given["destination"]), web, check=module.check_mode)
    except DownloadError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{given['destination']} cannot be read or written ({error}): look at its file system.")
    listed = "".join(f"{entry['sha256']}  {name}\n" for name, entry in sorted(result.files.items()))
    module.exit_json(
        changed=result.changed,
        path=given["destination"],
        files=result.files,
        size_bytes=result.size_bytes,
        downloaded_bytes=result.downloaded_bytes,
        resumed_bytes=result.resumed_bytes,
        diff={"before": "" if result.changed else listed, "after": listed},
    )


if __name__ == "__main__":
    main()
