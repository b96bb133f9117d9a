#!/usr/bin/env bash
# `make test`: linters, types, unit tests, the collection build, molecule. Run from the checkout with .venv made.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
export ANSIBLE_CONFIG="$PWD/ansible.cfg" MYPYPATH=collections PYTHONDONTWRITEBYTECODE=1
unset ANSIBLE_VAULT_PASSWORD_FILE

step() { printf '\n== %s\n' "$*"; }

step "yamllint";       yamllint --strict .
step "ruff";           ruff check . && ruff format --check .
step "mypy";           mypy -p ansible_collections.plumbline.plumbline.plugins && mypy lab bench
step "ansible-lint";   ansible-lint --offline
step "module documentation"; tests/check_documentation.sh
step "unit tests";     pytest -n 2 tests/unit
step "collection builds and installs"; tests/check_collection.sh
step "molecule";       tests/molecule.sh
