"""Finite-rank marks for predictions without closed forms."""
