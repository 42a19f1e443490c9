#!/bin/sh
# Run the tests on arm64 under emulation, as root: tests/arm64.sh FOLDER [pytest's arguments]
# They run once for each processor: all instructions, SDOT without matrix instructions, neither. QEMU_CPU names another.
# FOLDER gets a Debian 12 of arm64 (3 GB) with the dependencies, made once and kept; the checkout's commit is tested.
# Debian's packages: debootstrap qemu-user-static; binfmt_misc must hand arm64's programs to qemu-aarch64-static, flag F.
# Emulated code takes some 15 times as long. torch is 2.9.1: arm64's newer builds bring CUDA.
set -eu
folder=$(realpath -m "$1")
shift
cd "$(dirname "$0")/.."
root=$folder/root

inside() {  # inside COMMAND...: in the system of FOLDER
    env -i HOME=/root LANG=C.UTF-8 PATH=/venv/bin:/usr/bin:/bin:/usr/sbin:/sbin OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
        FASTFLOW_REQUIRE_EXT=1 QEMU_CPU="${cpu:-max}" chroot "$root" "$@"
}

if [ ! -e "$folder/ready" ]; then
    debootstrap --arch=arm64 --variant=minbase --include=python3,python3-venv,python3-dev,gcc,libc6-dev,git,ca-certificates \
        bookworm "$root"
    cp /etc/resolv.conf "$root/etc/"
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    mkdir -p "$root/proc" "$root/dev/shm"
    inside python3 -m venv /venv
    cp constraints.txt "$root/constraints.txt"
    inside pip install -q -U 'setuptools>=77'
    sed -i '/^torch==/d' "$root/constraints.txt"
    inside pip install -q -c /constraints.txt torch==2.9.1 transformers numpy scipy click tokenizers safetensors cython \
        scikit-learn bm25s starlette uvicorn httptools prometheus-client zstandard pyarrow pytest pytest-xdist hypothesis onnxruntime \
        sentencepiece protobuf
    touch "$folder/ready"
fi
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
rm -rf "$root/fastflow"
git clone -q . "$root/fastflow"
inside pip install -q --no-deps --no-build-isolation -e /fastflow
for cpu in ${QEMU_CPU:-max neoverse-n1 cortex-a72}; do
    echo "== $cpu"
    inside sh -c 'cd /fastflow && exec python -m pytest -p no:cacheprovider "$@"' sh "$@"
done
