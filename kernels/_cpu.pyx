# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, embedsignature=True
"""Bind the compiled kernels: the included .pxi files check shapes, and C computes without the GIL.

Each .pxi file is in the folder of the C headers that it declares. Constants and structs come from these headers, under
C's names without FF_ or ff_.
"""

import numpy as np

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

cdef extern from "cpu.h":
    enum: FF_AVX512, FF_AMX, FF_ISAS
    const char *ff_isa_name(int isa)
    int ff_isa_present(int isa)
    int ff_isa_usable(int isa)
    int ff_isa_vector(int isa)
    int ff_isa_rows(int isa)
    const char *ff_amx_missing()


def isas():
    """Return {instruction set: (number in C, whether present, floats in a vector, rows in a tile)}, worst first."""
    return {
        ff_isa_name(i).decode(): (i, bool(ff_isa_present(i)), ff_isa_vector(i), ff_isa_rows(i)) for i in range(FF_ISAS)
    }


include "c/mapped.pxi"
include "c/selftest/selftest.pxi"
include "c/flow/flow.pxi"
include "c/encoder/steps.pxi"
include "c/encoder/formats.pxi"
include "c/encoder/encoder.pxi"
include "c/gemm/packing.pxi"
include "c/search/search.pxi"
include "c/table/table.pxi"
include "c/tokens/tokens.pxi"
include "c/tokens/unigram.pxi"
include "c/embed/embed.pxi"
