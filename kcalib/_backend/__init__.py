"""Array libraries, devices, threads, memory, random numbers, dense linear algebra: the base of all other packages.

Nothing here knows predictions, kernels or estimates.
"""
