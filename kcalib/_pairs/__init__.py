"""The engine: reductions over H_ij = k(x_i, x'_j) <a_i, b_j>, a matrix that is never stored.

`problem` and `reductions` are the interface, `dispatch` chooses one of `backends`, `statistics` turns sums into
numbers. Nothing here knows user objects.
"""
