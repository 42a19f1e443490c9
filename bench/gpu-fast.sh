# shellcheck shell=bash disable=SC2154
# Part `fast` of bench/gpu.sh, which runs this: the time of the flow, the encoder and whole texts, with their peers.

eager=torch-lean-eager,torch-lean-graph
compiled=torch-lean-compile,torch-lean-reduce-overhead
encoders=torch-eager,torch-graph,sentence-transformers

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
print(sorted(choose_rows(sys.argv[1].split(','), 'cuda', False)))" "$eager,$compiled"
  for name in flow encoder end-to-end; do suite "$name-options" 60 "$name" "$eager" --help; done
else
  # The most important first, torch.compile last. FOLDER/NAME.json.part keeps rows as they come.
  # On a machine with 16 cores flow took over 45 seconds, each shape over 75.
  suite flow 55 flow "$eager"
  suite bert-base 95 encoder,end-to-end "$encoders" --shape bert-base
  suite minilm-l6 90 end-to-end,encoder "$encoders" --shape minilm-l6
  TAIL=80 step table 60 "$python" -m fastflow.bench.research.triton_table --out "$out/table.json" --seconds "$(left)"
  suite flow-compiled 60 flow "$compiled"
  suite encoder-compiled "$(left)" encoder torch-compile,torch-reduce-overhead --shape bert-base
fi
