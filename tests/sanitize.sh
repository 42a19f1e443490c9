#!/bin/sh
# The tests of the CPU kernels under GCC's AddressSanitizer and UndefinedBehaviorSanitizer, on a build of their own.
# Run from the checkout: tests/sanitize.sh [options of pytest]. PYTHON names an interpreter with the test dependencies.
# Left out: the tests of flat memory, because freed memory is kept in quarantine here; and the search for leaks, which
# Python's own would drown.
# Sanitizers do not see what AMX's tile operations touch; their emulation, which runs here, is ordinary C.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/checkout" "$work/empty"  # nothing built here stays in the tree, and nothing in the tree is imported
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$work/checkout"
cd "$work/checkout"
sanitize="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
CFLAGS="$sanitize" LDFLAGS="$sanitize" FASTFLOW_REQUIRE_EXT=1 \
    "$python" -m pip install -q --no-deps --no-build-isolation --target "$work/installed" . 2> "$work/log" ||
    { cat "$work/log" >&2; exit 1; }
mv tests pyproject.toml "$work/empty"
cd "$work/empty"

export PYTHONPATH="$work/installed" OMP_NUM_THREADS=1
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
export LD_PRELOAD="$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libubsan.so)"
"$python" - << 'PROGRAM'
import fastflow.kernels._cpu as built
maps = open("/proc/self/maps").read()
assert "installed" in built.__file__ and "libasan" in maps, built.__file__
PROGRAM
"$python" -m pytest -q -p no:cacheprovider tests/kernels/test_*_cpu*.py tests/kernels/test_search.py tests/kernels/test_tokens.py tests/kernels/test_table.py tests/kernels/test_embed.py "$@" \
    --deselect tests/kernels/test_flow_cpu.py::test_calls_keep_no_memory \
    --deselect tests/kernels/test_encoder_cpu_invariance.py::test_memory_does_not_grow
