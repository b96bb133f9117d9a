#!/usr/bin/env bash
# Every scenario under molecule/, on the lab's own node image (built once, no registry).
set -euo pipefail
cd "$(dirname "$0")/.."
LAB_IMAGE=$(python -m lab image)
export LAB_IMAGE
eval "$(python -m lab environment)"
for scenario in molecule/*/molecule.yml; do
  molecule test -s "$(basename "$(dirname "$scenario")")"
done
