# shellcheck shell=bash disable=SC2154
# Part `right` of bench/gpu.sh, which runs this: every body against float64, whole models, races and bounds.

# A process a core, for most of the time goes into compiling. The models come first: they are missed most.
export OMP_NUM_THREADS=2
checks=$(echo tests/triton_interpret/check_{models,encoder,flow}.py)
workers=$("$python" -c 'import importlib.util as u; print("-n auto" if u.find_spec("xdist") else "")')
tests=(-m pytest --noconftest -p no:cacheprovider -rfE --tb=short --durations=8)

# The sanitizer slows launches down: small ones, of every body, beside the tests.
# shellcheck disable=SC2086 # several words
sanitize() {
  local toolkit sanitizer filter names name part status=0 launches=tests/triton_interpret/small_launches.py
  local watched='flow_read flow_recur flow_emit flow_chain flow_state unit_rows pool_mean pool_first attend add_norm embed activate multiply_activate'
  toolkit=$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")
  sanitizer=$(command -v compute-sanitizer || echo "$toolkit/compute-sanitizer")
  [ -x "$sanitizer" ] || { echo "no compute-sanitizer on this machine" && return 1; }
  "$sanitizer" --help | grep -q -- --kernel-name && filter=--kernel-name || filter=--kernel-regex
  names=$(for name in $watched; do printf '%s kns=%s ' "$filter" "$name"; done)
  "$python" $launches || return 1 # compiled before the sanitizer slows everything down
  # One allocation a tensor, so that a step beyond its end shows. cuBLASLt's kernels are not watched, only ours.
  for part in flow float32 float16; do
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$sanitizer" --tool memcheck $names --error-exitcode 9 "$python" $launches $part ||
      status=9
    [ "$part" = float16 ] && names=${names/"$filter kns=attend "/} # racecheck itself crashes in it, on an H100
    "$sanitizer" --tool racecheck $names --error-exitcode 9 "$python" $launches $part || status=9
  done
  return "$status"
}
export -f sanitize

# shellcheck disable=SC2086 # several files
if [ -n "$dry" ]; then
  step small 120 "$python" tests/triton_interpret/small_launches.py flow float32
  TAIL=12 step models 120 "$python" "${tests[@]}" -s tests/triton_interpret/check_models.py -k reference
  step tests 60 "$python" "${tests[@]}" -q --collect-only $checks
else
  (step sanitizer 120 bash -c sanitize && exit "${#failed[@]}") >"$out/beside.txt" 2>&1 &
  TAIL=30 step tests "$(($(left) - 15))" "$python" "${tests[@]}" -v --junitxml="$out/tests.xml" $workers --dist worksteal $checks
  wait $! || failed+=(sanitizer)
  cat "$out/beside.txt"
fi
