"""The command ``kcalib``: see `cli`."""
