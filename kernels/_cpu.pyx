# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, embedsignature=True
"""The compiled kernels: shapes are checked here, arithmetic is in cpu/*.c, and the GIL is released around it."""

from libc.stdint cimport int32_t, int64_t, uintptr_t

cdef extern from "cpu/cpu.h":
    enum: FF_ISAS
    const char *ff_isa_name(int isa)
    int ff_isa_usable(int isa)
    int ff_isa_vector(int isa)
    int ff_isa_rows(int isa)
    ctypedef struct ff_op:
        pass
    ctypedef struct ff_flow:
        const float *weights
        const ff_op *ops
        const int32_t *table
        int32_t count, inputs, outputs, result, stride, block, cost, isa
    int ff_flow_run(const ff_flow *, const float *, float *, int64_t, int32_t, int, int) nogil


def isas():
    """name -> (number, usable here, floats in a vector, rows in a tile), worst first."""
    return {
        ff_isa_name(i).decode(): (i, bool(ff_isa_usable(i)), ff_isa_vector(i), ff_isa_rows(i)) for i in range(FF_ISAS)
    }


cdef class Flow:
    """A packed flow, ready to run. Immutable, so safe from several threads at once.

    weights: float32, its first element 64-byte aligned; ops: (n, 8) int32 and table: int32 as ``cpu/cpu.h`` says.
    """

    cdef ff_flow flow
    cdef object keep_alive

    def __cinit__(
        self, const float[::1] weights, const int32_t[:, ::1] ops, const int32_t[::1] table, *,
        int inputs, int outputs, int result, int stride, int block, int cost, int isa,
    ):
        if ops.shape[0] == 0 or ops.shape[1] != 8 or weights.shape[0] == 0 or table.shape[0] == 0:
            raise ValueError("a packed flow needs weights, operations of eight numbers and a table")
        if <uintptr_t>&weights[0] % 64:
            raise ValueError("the weights of a packed flow must be 64-byte aligned")
        if not 0 <= isa < FF_ISAS or not ff_isa_usable(isa):
            raise ValueError(f"instruction set {isa} cannot run on this machine")
        self.keep_alive = (weights, ops, table)
        self.flow.weights, self.flow.table = &weights[0], &table[0]
        self.flow.ops, self.flow.count = <const ff_op *>&ops[0, 0], <int32_t>ops.shape[0]
        self.flow.inputs, self.flow.outputs, self.flow.result = inputs, outputs, result
        self.flow.stride, self.flow.block, self.flow.cost, self.flow.isa = stride, block, cost, isa

    def run(self, const float[:, ::1] x, float[:, ::1] z, bint normalize, int threads):
        """x (B, D) -> the first columns of z (B, keep), keep <= N, in place; B = 0 does nothing."""
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
