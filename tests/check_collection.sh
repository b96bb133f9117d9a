#!/usr/bin/env bash
# The checkout builds as the collection plumbline.plumbline, and its modules work where only the collection is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ansible-galaxy collection build --output-path "$work" . >/dev/null
cd "$work"
# An own, empty configuration: that of the checkout must not help.
: >ansible.cfg
export ANSIBLE_CONFIG="$work/ansible.cfg"
ansible-galaxy collection install --offline -p "$work/collections" "$work"/plumbline-plumbline-*.tar.gz >/dev/null
ANSIBLE_COLLECTIONS_PATH="$work/collections" ansible localhost -m plumbline.plumbline.node_info >/dev/null
ANSIBLE_COLLECTIONS_PATH="$work/collections" ansible-playbook --syntax-check -i localhost, plumbline.plumbline.survey >/dev/null
# What is no Python travels with it: the vendors' BIOS mappings, which the action plugin reads. Without them the task fails by that, not by the BMC.
output=$(ANSIBLE_COLLECTIONS_PATH="$work/collections" ansible localhost -m plumbline.plumbline.redfish_bios \
  -a '{"base_url": "https://127.0.0.1:1", "username": "a", "password": "b", "logical": {"turbo": "enabled"}}' 2>&1) || true
grep -q 'connection refused' <<<"$output" || { echo "the vendors' BIOS mappings are not in the collection: $output" >&2; exit 1; }
# So do the engine's plugins, which are packed on the controller; without them the name is not found.
output=$(ANSIBLE_COLLECTIONS_PATH="$work/collections" ansible localhost -m plumbline.plumbline.engine_environment -a "$(cat <<JSON
{"root": "$work/engines", "kind": "cpu", "version": "0", "python_tag": "cp311", "lock_file": "$work/none", "lock_sha256": "0",
 "uv_requirement": "", "device": "cpu", "plugins": ["yuan"]}
JSON
)" 2>&1) || true
grep -q 'Expected the lock of the engine' <<<"$output" || { echo "the engine's plugins are not in the collection: $output" >&2; exit 1; }
