"""Sums over rows, which rows a state has seen, and a sample of them."""
