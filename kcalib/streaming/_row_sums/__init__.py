"""Sums over rows, the set of row numbers of a state, and a sample of rows."""
