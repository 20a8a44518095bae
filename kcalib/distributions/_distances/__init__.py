"""Compute tables of distances between predicted distributions; called by `distances` and by `kcalib._packing`."""
