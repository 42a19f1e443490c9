# shellcheck shell=bash disable=SC2154
# Part `fast` of bench/gpu.sh, which runs this: the time of the flow, the encoder and whole texts, with their peers.

flows=torch,torch-lean-eager,torch-lean-graph,torch-folded-state-eager,torch-folded-state-graph
compiled=torch-lean-reduce-overhead,torch-folded-state-reduce-overhead
texts=torch-graph,sentence-transformers

# suite NAME SECONDS SUITE PEERS OPTION... : one run of `fastflow bench` on the GPU
suite() {
  local name=$1 limit=$2 suite=$3 peers=$4
  shift 4
  TAIL=70 step "$name" "$limit" bash -c 'fastflow bench --device cuda "$@"' "$name" --suite "$suite" --against "$peers" \
    --json "$out/$name.json" "$@"
}

if [ -n "$dry" ]; then
  TAIL=12 step suites 200 "$python" tests/triton_interpret/dry_gpu.py "$out"
  TAIL=12 step table 60 "$python" -m fastflow.bench.research.triton_table --out "$out/table.json"
  step peers 60 "$python" -c "import sys; from fastflow.bench.suites.flow import choose_rows
print(sorted(choose_rows(sys.argv[1].split(','), 'cuda', False)))" "$flows,$compiled"
  for name in flow encoder end-to-end; do suite "$name-options" 60 "$name" "$texts" --help; done
else
  # Most important first. FOLDER/NAME.json.part keeps rows as they come. Not all fit into 240 seconds: STEPS asks a
  # second call for the others. Flow took 64 s and texts of MiniLM 52 s beside 16 slow cores, so they may be cut off.
  suite flow 60 flow "$flows"
  suite encoder-bert-base 60 encoder torch-graph --shape bert-base
  TAIL=80 step table 60 "$python" -m fastflow.bench.research.triton_table --out "$out/table.json" --seconds 55
  suite texts-minilm-l6 55 end-to-end "$texts" --shape minilm-l6
  suite texts-bert-base 60 end-to-end "$texts" --shape bert-base
  suite encoder-minilm-l6 40 encoder torch-graph --shape minilm-l6
  suite flow-compiled 60 flow "$compiled"
  suite encoder-compiled 60 encoder torch-reduce-overhead,torch-max-autotune --shape bert-base
fi
