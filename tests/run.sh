#!/usr/bin/env bash
# `make test`: linters, types, unit tests, the collection build, molecule. Run from the checkout with .venv made.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
export ANSIBLE_CONFIG="$PWD/ansible.cfg" MYPYPATH=collections PYTHONDONTWRITEBYTECODE=1
unset ANSIBLE_VAULT_PASSWORD_FILE

# One command a call: in `a && b` a failure of a would not stop the script.
step() {
  printf '\n== %s\n' "$*"
  "$@"
}

step yamllint --strict .
step ruff check .
step ruff format --check .
step mypy -p ansible_collections.plumbline.plumbline.plugins
step env MYPYPATH=collections:engine_plugins/yuan mypy lab bench tests/e2e tests/vm
step env MYPYPATH=collections:engine_plugins/yuan:engine_plugins/serving mypy -p plumbline_yuan -p yuan_reference -p plumbline_serving
step ansible-lint --offline
step tests/check_documentation.sh
step pytest -n 2 tests/unit
step tests/check_collection.sh
step tests/molecule.sh
