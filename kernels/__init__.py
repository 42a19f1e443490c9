"""Kernels: functions of plain arrays, which import no other part of fastflow.

operation  definition (NumPy)            compiled for the CPU         Triton for a GPU
encoder    ``encoder.reference``         ``encoder.cpu``              ``encoder.triton``
flow       ``flow.equations``, ``flow``  ``flow.cpu``                 ``flow.triton``
search     ``search.reference``          ``search.cpu``               –
tokens     tests                         ``tokens``                   –
"""
