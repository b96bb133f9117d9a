#!/usr/bin/env bash
# Every module's documentation renders, and states check mode, examples and return values.
set -euo pipefail
cd "$(dirname "$0")/.."
for file in library/*.py; do
  name=$(basename "$file" .py)
  [ "$name" = __init__ ] && continue
  text=$(ansible-doc -M library -t module "$name" 2>&1) || { echo "ansible-doc cannot render $file: $text" >&2; exit 1; }
  for section in EXAMPLES 'RETURN VALUES' check_mode diff_mode; do
    grep -q "$section" <<<"$text" || { echo "$file: its documentation lacks $section" >&2; exit 1; }
  done
done
for role in roles/*/; do
  for file in tasks/assert.yml tasks/stage.yml tasks/verify.yml defaults/main.yml meta/argument_specs.yml meta/main.yml; do
    [ -f "$role$file" ] || { echo "$role lacks $file" >&2; exit 1; }
  done
done
