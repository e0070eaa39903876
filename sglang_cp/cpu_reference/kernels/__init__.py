"""Torch twins of the GPU kernels that upstream's DSA code calls, one module per operation.

Pure functions, vectorised, deterministic. A row's result does not depend on the other rows of a call (context
parallelism hands each rank another subset of rows), except where a module says so.
"""
