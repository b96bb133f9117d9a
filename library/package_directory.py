#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: a directory of Debian packages as a source for apt."""

from __future__ import annotations

DOCUMENTATION = r"""
module: package_directory
short_description: Make a package source for apt of a directory of Debian packages
description:
  - Writes the index that apt reads into a directory of its own, beside a link to the packages. The directory with the packages is not
    written to, so it may be a read-only medium. Needs no further tool than C(dpkg-deb).
  - >-
    The source is named in a file of apt as C(URIs: file:INDEX), C(Suites: ./), C(Trusted: yes), and the packages are installed as those of
    any other source. They are not signed, so nobody but root may be able to change them, which is checked.
version_added: 0.1.0
options:
  path:
    description: Directory with the packages (C(*.deb)), owned by root and writable by no one else.
    type: path
    required: true
  index:
    description: Directory for the index.
    type: path
    required: true
attributes:
  check_mode:
    description: Says whether the index would change, and writes nothing.
    support: full
  diff_mode:
    description: Shows the packages of the old and the new index.
    support: full
author:
  - The Plumbline founders
"""

EXAMPLES = r"""
- name: The packages that were carried here are a source for apt
  plumbline.plumbline.package_directory:
    path: /srv/nvidia
    index: /var/lib/plumbline/gpu_driver
"""

RETURN = r"""
packages:
  description: File names of the packages.
  returned: success
  type: list
  elements: str
  sample: [nvidia-smi_580.159.04-1_amd64.deb]
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.package_index import (
    INDEX,
    DirectoryError,
    check_directory,
    is_right,
    make_index,
    write,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}, "index": {"type": "path", "required": True}},
        supports_check_mode=True,
    )
    path, index = module.params["path"], Path(module.params["index"])

    def run(command: list[str]) -> tuple[int, str, str]:
        binary = module.get_bin_path(command[0])
        if binary is None:
            return 127, "", f"{command[0]} is not installed"
        status, out, err = module.run_command([binary, *command[1:]], environ_update={"LC_ALL": "C.UTF-8"})
        return int(status), str(out), str(err)

    try:
        packages = check_directory(path)
        content = make_index(packages, run)
        changed = not is_right(index, content, path)
        before = (index / INDEX).read_text() if (index / INDEX).is_file() else ""
        if changed and not module.check_mode:
            write(index, content, path)
    except DirectoryError as error:
        module.fail_json(msg=str(error))
    except (OSError, UnicodeDecodeError) as error:
        module.fail_json(
            msg=f"expected to read {path} and to write the index {index}, found: {error}: make room, or correct the paths"
        )
    names = [package.name for package in packages]
    diff = {"before": _files(before), "after": _files(content), "before_header": str(index), "after_header": str(index)}
    module.exit_json(changed=changed, packages=names, diff=diff)


def _files(content: str) -> str:
    lines = [line.rpartition("/")[2] for line in content.splitlines() if line.startswith("Filename:")]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
