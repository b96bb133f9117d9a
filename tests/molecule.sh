#!/usr/bin/env bash
# Every scenario under molecule/, on the lab's own node image (built once, no registry).
set -euo pipefail
cd "$(dirname "$0")/.."
LAB_IMAGE=$(python -m lab image)
export LAB_IMAGE
eval "$(python -m lab environment)"
# The image is root's, as the lab's containers are; only molecule itself runs as root.
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  as_root=(sudo env "PATH=$PATH" "LAB_IMAGE=$LAB_IMAGE" "CONTAINERS_CONF=$CONTAINERS_CONF" PYTHONDONTWRITEBYTECODE=1)
fi
for scenario in molecule/*/molecule.yml; do
  "${as_root[@]}" molecule test -s "$(basename "$(dirname "$scenario")")"
done
