#!/usr/bin/env bash
# Everything a machine with an NVIDIA GPU has to check and measure, in one command of under ten minutes.
#
#   bench/gpu.sh [FOLDER]              results into FOLDER (default bench/results/gpu): JSON, table, plots and the logs
#   bench/gpu.sh --dry-run [FOLDER]    no GPU needed: the same steps on a CPU, tiny, the kernels interpreted
#
# Needs python3 with torch, triton, transformers, matplotlib, pytest, hypothesis and fastflow's own dependencies, and no
# network; the package need not be installed. BENCH_SECONDS (default 570) is the time for all steps together.
# compute-sanitizer is looked up on the PATH and beside nvcc; its racecheck sees hazards in shared memory, so a race in
# global scratch is looked for by repeating runs, which must agree bit for bit.
set -uo pipefail
cd "$(dirname "$0")/.."

dry=
if [ "${1:-}" = --dry-run ]; then
  dry=1
  shift
fi
folder=${1:-$([ -n "$dry" ] && echo build/gpu-dry || echo bench/results/gpu)}
out=$(mkdir -p "$folder" && cd "$folder" && pwd) || exit 2
limit=${BENCH_SECONDS:-570}
peers=torch,torch-ukp-eager,torch-lean-eager,torch-lean-reduce-overhead,torch-lean-graph,torch-folded
peers=${BENCH_PEERS:-$peers,torch-folded-state-eager,torch-folded-state-graph}
python=${PYTHON:-python3}
checks=$(echo tests/triton_interpret/check_{flow,encoder,runtime}.py)
watched='flow_loop flow_read flow_write flow_state unit_rows pool_mean pool_first'
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
for part in kernels train bench; do cp -r "$part" "$package/fastflow/$part"; done
export PYTHONPATH="$package${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
export TRITON_CACHE_DIR="$package/triton"

fastflow() { "$python" -c 'from fastflow.cli import main; main()' "$@"; }
export -f fastflow
export python

# Small launches of every body, for the sanitizer: of the flow several blocks of rows, one program or more.
cat >"$package/small.py" <<'PYTHON'
import sys

import torch
import triton

from fastflow.bench.suites.workloads import pooled_like, trained_like
from fastflow.plan.fold import fold
from fastflow.kernels.encoder import triton_bodies as encoder_triton_bodies
from fastflow.kernels.flow import triton as flow_triton
from fastflow.kernels.encoder.triton_configurations import row_constants
from fastflow.kernels.flow.triton_configurations import CONFIGURATIONS

device = "cpu" if triton.knobs.runtime.interpret else "cuda"
x = pooled_like(300, 64, 1)
for kind in sys.argv[1:]:
    coupling = "affine" if kind == "state" else "additive"
    stage = trained_like(x, 1, levels=2, depth=2, width=32, coupling=coupling)
    flow = flow_triton.TritonFlow(fold([stage], 64), device)
    flow.programs = 1
    for config in CONFIGURATIONS[kind]:
        flow_triton.choose = lambda *_, config=config: config
        rows = torch.from_numpy(x[: 1 if config.BM == 1 else 2 * config.BM + 5]).to(device)
        z = flow(rows, normalize=True)
        assert torch.isfinite(z).all() and torch.equal(z, flow(rows, normalize=True)), config
        print(kind, config.body, config.BM, tuple(z.shape), flush=True)
    offsets = torch.tensor([0, 3, 3, 40], dtype=torch.int32, device=device)
    hidden, first = torch.from_numpy(x[:40]).to(device), torch.empty(3, 64, device=device)
    pooled = flow.pool(hidden, offsets)
    encoder_triton_bodies.pool_first[(3,)](hidden, offsets, first, 64, **row_constants(64))
    assert torch.equal(first[0], hidden[0]) and torch.isfinite(pooled).all()
    print(kind, "pooling", tuple(pooled.shape), flush=True)
PYTHON

if [ -n "$dry" ]; then
  export CUDA_VISIBLE_DEVICES= # the dry run must not need, nor touch, a GPU
  step shell 10 bash -n bench/gpu.sh
  # shellcheck disable=SC2086 # several files, several words
  TRITON_INTERPRET=1 step tests 120 "$python" -m pytest --noconftest -p no:cacheprovider --collect-only -q $checks
  TRITON_INTERPRET=1 step races 120 "$python" "$package/small.py" state
  # shellcheck disable=SC2086
  step names 60 "$python" -c "import sys
from fastflow.kernels.encoder import triton_bodies as e
from fastflow.kernels.flow import triton_bodies as f
assert all(hasattr(e, n) or hasattr(f, n) for n in sys.argv[1:])" $watched
  step peers 60 "$python" -c "import sys; from fastflow.bench.suites.candidates_flow import chosen
print(sorted(chosen(sys.argv[1].split(','), 'cuda', False)))" "$peers"
  step options 60 bash -c \
    'fastflow bench --suite flow,encoder,end-to-end --device cuda --against "$0" --json a --plot b.png --help' "$peers"
  PYTHONPATH="$PYTHONPATH:tests" OMP_NUM_THREADS=1 TRITON_INTERPRET=1 TAIL=12 \
    step suites 200 "$python" tests/triton_interpret/dry_gpu.py "$out"
else
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv || failed+=(nvidia-smi)
  workers=$("$python" -c 'import importlib.util as u; print("-n 8" if u.find_spec("xdist") else "")')
  # shellcheck disable=SC2086
  TAIL=12 step tests 150 "$python" -m pytest --noconftest -p no:cacheprovider $workers -q $checks

  # In the order of what is missed most: text to vector, the encoder, the flow; each first in what needs no compiling.
  TAIL=60 step texts 100 bash -c \
    'fastflow bench --suite end-to-end --device cuda --json "$0/end-to-end.json" --plot "$0/end-to-end.png"' "$out"
  TAIL=60 step encoder-quick 60 bash -c \
    'fastflow bench --suite encoder --device cuda --quick --json "$0/encoder-quick.json"' "$out"
  TAIL=60 step flow-quick 60 bash -c \
    'fastflow bench --suite flow --device cuda --quick --json "$0/flow-quick.json"' "$out"

  toolkit=$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")
  sanitizer=$(command -v compute-sanitizer || echo "$toolkit/compute-sanitizer")
  if [ -x "$sanitizer" ]; then
    "$sanitizer" --help | grep -q -- --kernel-name && filter=--kernel-name || filter=--kernel-regex
    names=$(for name in $watched; do printf '%s kns=%s ' "$filter" "$name"; done)
    step warm 40 "$python" "$package/small.py" hidden state # compiled before the sanitizer slows everything down
    # shellcheck disable=SC2086
    step races 60 "$sanitizer" --tool racecheck $names --error-exitcode 9 "$python" "$package/small.py" hidden
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1 # one allocation a tensor, so that a step beyond its end shows
    # shellcheck disable=SC2086
    step bounds 60 "$sanitizer" --tool memcheck $names --error-exitcode 9 "$python" "$package/small.py" hidden state
    unset PYTORCH_NO_CUDA_MEMORY_CACHING
  else
    echo '== races: no compute-sanitizer on this machine'
    failed+=(races)
  fi

  # All sizes and all peers in the time that is left, half of it each.
  TAIL=90 step flow $(($(left) / 2)) bash -c \
    'fastflow bench --suite flow --device cuda --against "$1" --json "$0/flow.json" --plot "$0/flow.png"' "$out" "$peers"
  TAIL=90 step encoder "$(left)" bash -c \
    'fastflow bench --suite encoder --device cuda --json "$0/encoder.json" --plot "$0/encoder.png"' "$out"
fi

echo "== ${SECONDS} s; failed: ${failed[*]:-nothing}"
[ "${#failed[@]}" -eq 0 ]
