#!/bin/sh
# Build the kernels with other compilers and for arm64, and check the numbers and the instructions of what comes out.
# Debian's packages: clang gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user. Run from the checkout: tests/builds.sh
# PYTHON names an interpreter that has the package's test dependencies (python).
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags="-std=c11 -O3 -ffp-contract=off -fno-math-errno -Wall -Wextra -Werror -Ikernels/c"

need() {  # need FILE PATTERN: the disassembly has the instruction
    grep -qE "$2" "$1" || { echo "$1 has no $2" >&2; exit 1; }
}

for compiler in gcc clang; do
    echo "== $compiler"
    rm -rf build/fuzz/plain
    CC=$compiler CFLAGS='-O3 -Werror' "${PYTHON:-python}" tests/fuzz/building.py plain products
    $compiler $flags -c kernels/c/gemm/amx.c -o "$work/amx.o"
    objdump -d "$work/amx.o" > "$work/amx.$compiler"
    for instruction in ldtilecfg tileloadd tileloaddt1 tilezero tdpbf16ps tdpbssd tilestored tilerelease; do
        need "$work/amx.$compiler" "$instruction"
    done
done

mkdir "$work/empty"  # where nothing of the checkout is imported by accident
cp -r tests pyproject.toml "$work/empty"
export OMP_NUM_THREADS=1
for compiler in gcc clang; do
    echo "== $compiler, the bits"
    mkdir "$work/$compiler"  # a checkout of its own: a build folder would hand one compiler's objects to the other
    git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$work/$compiler"
    CC=$compiler LDSHARED="$compiler -shared" FASTFLOW_REQUIRE_EXT=1 "${PYTHON:-python}" -m pip install -q --no-deps \
        --no-build-isolation --target "$work/$compiler.installed" "$work/$compiler"
    (
        cd "$work/empty"
        export PYTHONPATH="$work/$compiler.installed"
        "${PYTHON:-python}" -c 'import sys, fastflow.kernels._cpu as built; assert built.__file__.startswith(sys.argv[1])' \
            "$work/$compiler.installed"
        "${PYTHON:-python}" tests/native/hashes.py > "$work/$compiler.hashes"
    )
done
diff "$work/gcc.hashes" "$work/clang.hashes"

echo "== clang, the tests"
(cd "$work/empty" && PYTHONPATH="$work/clang.installed" "${PYTHON:-python}" -m pytest -q -p no:cacheprovider tests/kernels/test_*_cpu*.py tests/kernels/test_search.py tests/kernels/test_tokens.py tests/kernels/test_table.py tests/kernels/test_embed.py)

echo "== arm64"
rm -rf build/fuzz/arm64
CC=aarch64-linux-gnu-gcc CFLAGS='-O3 -Werror -static' "${PYTHON:-python}" tests/fuzz/building.py arm64 products
for file in encoder flow; do
    aarch64-linux-gnu-gcc $flags -c "kernels/c/$file/portable.c" -o "$work/$file.o"
    aarch64-linux-gnu-objdump -d "$work/$file.o" > "$work/$file.arm64"
    need "$work/$file.arm64" 'fmla\s+v[0-9]+\.4s'
done
echo "all builds are right"
