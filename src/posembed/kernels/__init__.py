"""Fused lookups: an input layer's reads, sums, norm and dropout in one pass over memory.

``lookup`` is a torch operator with one definition (plain.py) and two implementations of it: pieces.py for CPUs,
triton_rows.py for CUDA.
"""

from posembed.kernels.operator import lookup as lookup
from posembed.kernels.plain import Norm as Norm
