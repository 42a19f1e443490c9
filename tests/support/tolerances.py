"""The bounds of the suite in one place, with their reasons. Compare with ``<=`` after asserting finiteness."""

# NumPy reference against transformers, max |difference| of hidden states that a LayerNorm has made O(1)
REFERENCE = {"float32": 1e-5, "float64": 1e-10}
# two backends at float32, max |difference| of unit-normalised embeddings
EMBEDDING = 1e-5
# the same text packed with others or alone: only BLAS's summation order differs
COMPANY = {"float32": 1e-5, "float64": 1e-12}
# a fused kernel errs at most this many times what the unfused computation does at the same precision, both against
# float64; the floor covers cases that happen to be exact
FUSED_FACTOR = 2.0
FUSED_FLOOR = 1e-6
# a folded calibration against the unfolded one, both in float64, relative to the largest output
FOLDED = 1e-12
# the float32 native path against float64, max |difference| of unit-normalised embeddings
UNIT = 2e-6
# for the flow alone, relative to the norm of the output: half a unit in the last place of a float32
FLOW_FLOOR = 6e-8
# an embedding whose encoder ran in a lower precision against float32: least cosine of any text
COSINE = {"bfloat16": 0.9995, "int8": 0.995}
