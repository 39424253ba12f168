"""Native sparse kernels for the CPU: linear layers and 2d convolutions that skip the zeros of their weights."""

from autosparse.kernels.functional import sparse_conv2d, sparse_linear
from autosparse.kernels.library import available, instruction_set, lanes, why_not

__all__ = [
    "available",
    "instruction_set",
    "lanes",
    "sparse_conv2d",
    "sparse_linear",
    "why_not",
]
