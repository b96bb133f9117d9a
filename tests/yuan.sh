#!/usr/bin/env bash
# `make test-yuan`: the tests that need the engine's Python (torch, vLLM, transformers). Arguments go to pytest (-m long: the whole matrix).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${ENGINE_PYTHON:-python3.11}
if ! command -v "$python" >/dev/null; then
  echo "make test-yuan: there is no $python here, for which the lock of the CPU engine is: install Python 3.11 or set ENGINE_PYTHON." >&2
  exit 1
fi
export PYTHONDONTWRITEBYTECODE=1
.venv/bin/python tests/tools/engine_venv.py "$python"
directories=()
for directory in tests/yuan tests/engine_python; do
  if [ -d "$directory" ]; then directories+=("$directory"); fi
done
# The reference is not installed: it lies beside the plugin.
export PYTHONPATH="$PWD/engine_plugins/yuan${PYTHONPATH:+:$PYTHONPATH}"
# No hub, no statistics, one engine process that ends with its test.
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1
if [[ " $* " != *" -m "* ]]; then set -- -m "not long" "$@"; fi
exec .cache/engine-venv/bin/python -m pytest -p no:cacheprovider "${directories[@]}" "$@"
