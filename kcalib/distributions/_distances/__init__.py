"""Tables of distances between predicted distributions; used by `distances` and `kcalib._packing`."""
