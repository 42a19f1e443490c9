#!/usr/bin/env bash
# Everything a machine with an NVIDIA GPU has to check and measure of the flow, in one command of under ten minutes.
#
#   bench/gpu.sh [FOLDER]                    results into FOLDER (default build/gpu): flow.json, flow.png and the logs
#   BENCH_DRY_RUN=1 bench/gpu.sh [FOLDER]    no GPU needed: every command line is checked, the kernels are interpreted
#
# Needs python3 with torch, triton, pytest, hypothesis and fastflow's own dependencies, and no network; the package need
# not be installed. BENCH_SECONDS (default 570) is the time for all steps together. compute-sanitizer is looked up on
# the PATH and beside nvcc; its racecheck sees hazards in shared memory, so a race in global scratch is looked for by
# repeating runs, which must agree bit for bit.
set -uo pipefail
cd "$(dirname "$0")/.."

out=$(mkdir -p "${1:-build/gpu}" && cd "${1:-build/gpu}" && pwd) || exit 2
dry=${BENCH_DRY_RUN:-}
limit=${BENCH_SECONDS:-570}
peers=torch,torch-ukp-eager,torch-lean-eager,torch-lean-reduce-overhead,torch-lean-graph,torch-folded
peers=${BENCH_PEERS:-$peers,torch-folded-state-eager,torch-folded-state-graph}
python=${PYTHON:-python3}
bodies='flow_loop flow_read flow_write flow_state pool_mean unit_rows'
failed=()

left() { echo $((limit - SECONDS > 5 ? limit - SECONDS : 5)); }

# step NAME SECONDS COMMAND... : run it, at most so long, into FOLDER/NAME.log; a failure is remembered, not fatal
step() {
  local name=$1 most=$2 status
  shift 2
  echo "== $name: $*"
  timeout "$((most < $(left) ? most : $(left)))" "$@" >"$out/$name.log" 2>&1
  status=$?
  tail -n "${TAIL:-4}" "$out/$name.log"
  if [ "$status" -ne 0 ]; then
    echo "== $name: exit $status (124: out of time); the whole log is $out/$name.log"
    failed+=("$name")
  fi
  return "$status"
}

# The four folders under the names they are imported by.
package=$(mktemp -d)
trap 'rm -rf "$package"' EXIT
cp -r fastflow "$package/fastflow"
for folder in kernels train bench; do cp -r "$folder" "$package/fastflow/$folder"; done
export PYTHONPATH="$package${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
export TRITON_CACHE_DIR="$package/triton"

fastflow() { "$python" -c 'from fastflow.cli import main; main()' "$@"; }
export -f fastflow
export python

# Small launches of every body of the loop kind, for the sanitizer: each several blocks of rows, one program or more.
cat >"$package/small.py" <<'PYTHON'
import sys

import torch
import triton

from fastflow.bench.subjects import pooled_like, trained_like
from fastflow.flow import fold
from fastflow.kernels import flow_triton
from fastflow.kernels.flow_triton_table import TABLE

device = "cpu" if triton.knobs.runtime.interpret else "cuda"
x = pooled_like(300, 64, 1)
for kind in sys.argv[1:]:
    coupling = "affine" if kind == "state" else "additive"
    stage = trained_like(x, 1, levels=2, depth=2, width=32, coupling=coupling)
    flow = flow_triton.TritonFlow(fold([stage], 64), device)
    flow.programs = 1
    for config in TABLE[kind, "float32"]:
        flow_triton.choose = lambda *_, config=config: config
        rows = torch.from_numpy(x[: 1 if config.BM == 1 else 2 * config.BM + 5]).to(device)
        z = flow(rows, normalize=True)
        assert torch.isfinite(z).all() and torch.equal(z, flow(rows, normalize=True)), config
        print(kind, config.body, config.BM, tuple(z.shape), flush=True)
PYTHON

if [ -n "$dry" ]; then
  export CUDA_VISIBLE_DEVICES= # the dry run must not need, nor touch, a GPU
  step shell 10 bash -n bench/gpu.sh
  TRITON_INTERPRET=1 step tests 120 "$python" -m pytest --noconftest -p no:cacheprovider --collect-only -q \
    tests/triton_interpret/check_flow.py
  TRITON_INTERPRET=1 step races 120 "$python" "$package/small.py" hidden state
  step names 60 "$python" -c "import sys; from fastflow.kernels import flow_triton_bodies as b
assert all(hasattr(b, n) for n in sys.argv[1:])" $bodies
  step peers 60 "$python" -c "import sys; from fastflow.bench.candidates_flow import chosen
print(sorted(chosen(sys.argv[1].split(','), 'cuda', False)))" "$peers"
  step bench 60 bash -c \
    'fastflow bench --suite flow --device cuda --quick --against "$0" --json a --plot b.png --help' "$peers"
else
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv || failed+=(nvidia-smi)
  workers=$("$python" -c 'import importlib.util as u; print("-n 8" if u.find_spec("xdist") else "")')
  # shellcheck disable=SC2086 # the option and its number are two words
  TAIL=12 step tests 240 "$python" -m pytest --noconftest -p no:cacheprovider $workers -q \
    tests/triton_interpret/check_flow.py

  toolkit=$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")
  sanitizer=$(command -v compute-sanitizer || echo "$toolkit/compute-sanitizer")
  if [ -x "$sanitizer" ]; then
    "$sanitizer" --help | grep -q -- --kernel-name && filter=--kernel-name || filter=--kernel-regex
    step warm 60 "$python" "$package/small.py" hidden state # compiled before the sanitizer slows everything down
    step races 100 "$sanitizer" --tool racecheck "$filter" kns=flow_ --error-exitcode 9 \
      "$python" "$package/small.py" hidden
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1 # one allocation a tensor, so that a step beyond its end shows
    step bounds 100 "$sanitizer" --tool memcheck "$filter" kns=flow_ --error-exitcode 9 \
      "$python" "$package/small.py" hidden state
    unset PYTORCH_NO_CUDA_MEMORY_CACHING
  else
    echo '== races: no compute-sanitizer on this machine'
    failed+=(races)
  fi

  # First what needs no compiling, so that there is a result whatever happens; then all sizes, in the time that is left.
  TAIL=60 step quick 150 bash -c 'fastflow bench --suite flow --device cuda --quick --json "$0/flow-quick.json"' "$out"
  TAIL=90 step bench "$(left)" bash -c \
    'fastflow bench --suite flow --device cuda --against "$1" --json "$0/flow.json" --plot "$0/flow.png"' "$out" "$peers"
fi

echo "== ${SECONDS} s; failed: ${failed[*]:-nothing}"
[ "${#failed[@]}" -eq 0 ]
