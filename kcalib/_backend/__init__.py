"""What everything else stands on: array libraries, devices, threads, memory, random numbers, dense linear algebra.

Nothing here knows of predictions, kernels or estimates.
"""
