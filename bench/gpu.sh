#!/usr/bin/env bash
# What a machine with an NVIDIA GPU has to show, in two parts that stand alone:
#
#   bench/gpu.sh right [FOLDER]     are the vectors right: at most 150 seconds
#   bench/gpu.sh fast [FOLDER]      what they cost: at most 240 seconds
#   bench/gpu.sh PART --dry-run [FOLDER]   no GPU needed: every command of the part, tiny, the kernels interpreted
#
# Results go into FOLDER (default bench/results/gpu): logs, JSON and the compiled kernels, which a later run reuses
# (TRITON_CACHE_DIR names another folder for them). SECONDS_MOST: seconds in place of 150 or 240. A step that is cut
# off keeps its rows. STEPS=NAME,NAME runs only these. If a step fails, the others run, and the exit code is 1.
#
# Needs python3 (PYTHON names another) with torch >= 2.7, triton >= 3.6, transformers, tokenizers, safetensors, click,
# pytest, pytest-xdist, hypothesis and scipy, 8 GB of the GPU's memory, a C compiler for Triton, and no
# network, models (weights are random) or installed package. Sentence Transformers is compared if it is there, the
# sentences of STSb-test if they lie in ../shared/data or in DATA. compute-sanitizer is looked up on the PATH and beside
# nvcc; it misses races in global memory, which repeated runs find.
set -uo pipefail
cd "$(dirname "$0")/.."

part=${1:-}
case $part in right) most=150 ;; fast) most=240 ;; *) sed -n '2,10p' "$0" && exit 2 ;; esac
shift
dry=
if [ "${1:-}" = --dry-run ]; then
  dry=1
  shift
  export CUDA_VISIBLE_DEVICES= TRITON_INTERPRET=1 OMP_NUM_THREADS=1 # must not need, nor touch, a GPU
fi
folder=${1:-$([ -n "$dry" ] && echo build/gpu-dry || echo bench/results/gpu)}
out=$(mkdir -p "$folder" && cd "$folder" && pwd) || exit 2
most=${SECONDS_MOST:-$most}
export python=${PYTHON:-python3} out
failed=()

left() { echo $((most - SECONDS - 5)); } # a step may take 5 seconds to stop

# stamped BEGUN : each line with the seconds since then
stamped() { while IFS= read -r line || [ -n "$line" ]; do printf '%3d  %s\n' $((SECONDS - $1)) "$line"; done; }

# step NAME SECONDS COMMAND... : run it, at most so long, into FOLDER/NAME.log; a failure is remembered, not fatal
step() {
  local name=$1 limit=$2 begun=$SECONDS status
  shift 2
  [[ ",${STEPS:-$name}," == *",$name,"* ]] || return
  [ "$(left)" -gt 0 ] || { echo "== $name: no time is left" && failed+=("$name") && return; }
  timeout -s INT -k 5 "$((limit < $(left) ? limit : $(left)))" "$@" 2>&1 | stamped "$begun" >"$out/$name.log"
  status=${PIPESTATUS[0]}
  echo "== $name: $((SECONDS - begun)) s"
  tail -n "${TAIL:-4}" "$out/$name.log"
  if [ "$status" -ne 0 ]; then
    echo "== $name: exit $status (124: out of time); the whole log is $out/$name.log"
    failed+=("$name")
  fi
}

# The four folders under the names they are imported by, and the texts where the suites look for them.
package=$(mktemp -d)
trap 'rm -rf "$package"' EXIT
cp -r fastflow "$package/fastflow"
for name in kernels train bench examples; do cp -r "$name" "$package/fastflow/$name"; done
data=${DATA:-../shared/data}
if [ -d "$data" ]; then mkdir "$package/shared" && ln -s "$(cd "$data" && pwd)" "$package/shared/data"; fi
export PYTHONPATH="$package:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$out/kernels}

fastflow() { "$python" -c 'from fastflow.cli import main; main()' "$@"; }
export -f fastflow

[ -n "$dry" ] || nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem --format=csv |
  tee "$out/gpu.csv" || failed+=(nvidia-smi)
# shellcheck source=/dev/null
. "bench/gpu-$part.sh"

echo "== $SECONDS s; failed: ${failed[*]:-nothing}"
[ "${#failed[@]}" -eq 0 ]
