#!/usr/bin/env bash
# mypy --strict over the package as it is installed (kernels, train and bench are folders of fastflow there), and release/.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=build/typed/fastflow
mkdir -p "$tree"
find "$tree" -type l -delete
for entry in fastflow/*; do ln -s "$PWD/$entry" "$tree/"; done
for room in kernels train bench; do ln -s "$PWD/$room" "$tree/"; done
mypy --config-file pyproject.toml "$tree" release/*.py "$@"
