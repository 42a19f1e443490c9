cdef extern from "flow/flow.h":
    enum: FF_CENTRE, FF_GATHER, FF_PRODUCT
    enum: FF_ADD, FF_RELU, FF_GATE, FF_SPLIT
    enum: FF_ASCENDING, FF_DESCENDING, FF_SCATTERED
    enum: FF_INPUT
    ctypedef struct ff_op:
        int32_t kind, to, columns, weights, bias, source, depth, chain, mode
    ctypedef struct ff_flow:
        const float *weights
        const ff_op *ops
        const int32_t *table
        int32_t count, inputs, outputs, result, stride, block, cost, isa
    int ff_flow_run(const ff_flow *, const float *, float *, int64_t, int32_t, int, int) nogil


CENTRE, GATHER, PRODUCT = FF_CENTRE, FF_GATHER, FF_PRODUCT
ADD, RELU, GATE, SPLIT = FF_ADD, FF_RELU, FF_GATE, FF_SPLIT
ASCENDING, DESCENDING, SCATTERED = FF_ASCENDING, FF_DESCENDING, FF_SCATTERED
INPUT = FF_INPUT
cdef ff_op _op
OP = np.asarray(<ff_op[:1]>&_op).dtype  # raises unless the fields declared above fill C's struct


cdef class Flow:
    """Hold a flow laid out for one instruction set. Immutable, so threads may share it.

    As in ``c/flow/flow.h``: weights float32, 64-byte aligned; ops (n,) of ``OP``; table int32.
    """

    cdef ff_flow flow
    cdef object keep_alive

    def __cinit__(
        self, const float[::1] weights, const ff_op[::1] ops, const int32_t[::1] table, *,
        int inputs, int outputs, int result, int stride, int block, int cost, int isa,
    ):
        if ops.shape[0] == 0 or weights.shape[0] == 0 or table.shape[0] == 0:
            raise ValueError("a packed flow needs weights, operations and a table")
        if <uintptr_t>&weights[0] % 64:
            raise ValueError("the weights of a packed flow must be 64-byte aligned")
        if not 0 <= isa < FF_ISAS or not ff_isa_usable(isa):
            raise ValueError(f"instruction set {isa} cannot run on this machine")
        self.keep_alive = (weights, ops, table)
        self.flow.weights, self.flow.table = &weights[0], &table[0]
        self.flow.ops, self.flow.count = &ops[0], <int32_t>ops.shape[0]
        self.flow.inputs, self.flow.outputs, self.flow.result = inputs, outputs, result
        self.flow.stride, self.flow.block, self.flow.cost, self.flow.isa = stride, block, cost, isa

    def run(self, const float[:, ::1] x, float[:, ::1] z, bint normalize, int threads):
        """Write the first columns of the flow's result for x (B, D) to z (B, keep), keep <= N, summed in float32."""
        if x.shape[1] != self.flow.inputs or z.shape[0] != x.shape[0] or not 1 <= z.shape[1] <= self.flow.outputs:
            raise ValueError(
                f"the flow maps (B, {self.flow.inputs}) to (B, {self.flow.outputs}) or fewer columns, "
                f"not ({x.shape[0]}, {x.shape[1]}) to ({z.shape[0]}, {z.shape[1]})"
            )
        if x.shape[0] == 0:
            return
        cdef int failed
        cdef const float *source = &x[0, 0]
        cdef float *target = &z[0, 0]
        cdef int64_t rows = x.shape[0]
        cdef int32_t keep = <int32_t>z.shape[1]
        with nogil:
            failed = ff_flow_run(&self.flow, source, target, rows, keep, normalize, threads)
        if failed:
            raise MemoryError("no memory for the scratch space of the flow")
