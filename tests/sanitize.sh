#!/bin/sh
# The CPU kernels under a sanitizer, each on a build of its own. Run from the checkout:
#
#   tests/sanitize.sh asan|ubsan [options of pytest]   the tests of the kernels, then the native targets of tests/fuzz
#   tests/sanitize.sh tsan                             the native targets, four callers at once: pool, encoder, flow, texts
#   tests/sanitize.sh valgrind                         the native targets; flows and encoders on the portable kernels
#
# PYTHON names an interpreter with the test dependencies. Left out: the tests of flat memory, because freed memory is kept
# in quarantine here; that of a signal which ends the process, since ASan takes it; and the search for leaks in the tests, which Python's own would drown.
# Sanitizers do not see what AMX's tile operations touch; their emulation, which runs here, is ordinary C.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
word=${1:-}
case $word in
    asan) sanitize=address ;;
    ubsan) sanitize=undefined ;;
    tsan | valgrind) exec "$python" tests/fuzz/building.py "$word" ;;
    *) echo "usage: tests/sanitize.sh asan|ubsan|tsan|valgrind [options of pytest]" >&2; exit 2 ;;
esac
shift
checkout=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/checkout" "$work/empty"  # nothing built here stays in the tree, and nothing in the tree is imported
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$work/checkout"
cd "$work/checkout"
flags="-fsanitize=$sanitize -fno-sanitize-recover=all -fno-omit-frame-pointer"
CFLAGS="$flags" LDFLAGS="$flags" FASTFLOW_REQUIRE_EXT=1 \
    "$python" -m pip install -q --no-deps --no-build-isolation --target "$work/installed" . 2> "$work/log" ||
    { cat "$work/log" >&2; exit 1; }
mv tests pyproject.toml "$work/empty"
cd "$work/empty"

export PYTHONPATH="$work/installed" OMP_NUM_THREADS=1
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
library=$(gcc -print-file-name=lib$word.so)
LD_PRELOAD=$library "$python" - "lib$word" << 'PROGRAM'
import sys
import fastflow.kernels._cpu as built
assert "installed" in built.__file__ and sys.argv[1] in open("/proc/self/maps").read(), built.__file__
PROGRAM
LD_PRELOAD=$library "$python" -m pytest -q -p no:cacheprovider tests/kernels/test_*_cpu*.py tests/kernels/test_search.py \
    tests/kernels/test_tokens.py tests/kernels/test_unigram.py tests/kernels/test_table.py tests/kernels/test_embed.py tests/kernels/test_mapped.py "$@" \
    --deselect tests/kernels/test_mapped.py::test_a_map_that_is_not_ours_ends_the_process_as_before \
    --deselect tests/kernels/test_bits_cpu.py::test_calls_keep_no_memory
cd "$checkout"
unset PYTHONPATH
"$python" tests/fuzz/building.py "$word"
