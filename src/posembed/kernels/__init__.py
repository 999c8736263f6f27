"""Fused lookups: an input layer's reads, sums, norm and dropout in one pass over memory.

    lookup          token (+ position) (+ type) rows (+ norm) (+ dropout), as a torch operator with its gradient
    Norm            the norm of a lookup

One definition (plain.py) and two implementations of it: pieces.py for CPUs, triton_rows.py for CUDA.
"""

from posembed.kernels.operator import lookup as lookup
from posembed.kernels.plain import Norm as Norm
