"""The cost of a position encoding: parameters, time, memory, and how they grow with length."""
