"""Fused lookups: what an input layer reads, adds, normalizes and drops, in one pass over memory.

    lookup          token (+ position) (+ type) rows (+ norm) (+ dropout), as a torch operator with its gradient
    Norm            the norm of a lookup

One definition (plain.py) and two bodies that are held to it: pieces.py for CPUs, triton_rows.py for CUDA.
"""

from posembed.kernels.operator import lookup as lookup
from posembed.kernels.plain import Norm as Norm
