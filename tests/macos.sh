#!/bin/sh
# Compile and link the extension for macOS without warnings, and check the types as macOS has them: tests/macos.sh
# Nothing is run. zig (pip install ziglang -c constraints.txt) is clang with macOS's headers; Python.h is this machine's,
# whose pyconfig.h differs from macOS's. PYTHON names an interpreter that has cython, mypy and ziglang (python).
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python}
cython -3 kernels/_cpu.pyx -o "$work/_cpu.c"
flags="-std=c11 -O0 -ffp-contract=off -fno-math-errno -fvisibility=hidden -g0 -pthread -Wall -Wextra -Werror"
include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
for target in aarch64-macos.11.0 'x86_64-macos.11.0 -mcpu=x86_64+evex512'; do # zig leaves evex512 out of AVX-512
    echo "== $target"
    compile="$python -m ziglang cc -target $target"
    find kernels/c "$work/_cpu.c" -name '*.c' | tr / @ | xargs -P "$(nproc)" -I{} sh -c \
        "$compile $flags -Ikernels/c -I$include -c \$(echo {} | tr @ /) -o '$work/{}.o'"
    $compile -shared "$work"/*.o -o "$work/_cpu.so" 2> "$work/absent" || true
    grep -q 'undefined symbol: _PyModuleDef_Init' "$work/absent"
    # absent is only what Python defines, and clang's runtime (___cpu_model), which zig lacks
    if grep -v 'undefined symbol: _\(_*Py\|__cpu_\)\|^ *note: ' "$work/absent"; then exit 1; fi
    rm "$work"/*.o
done
tests/typed.sh --platform darwin --cache-dir build/typed/darwin
