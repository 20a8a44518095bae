"""The command ``kcalib``: its arguments (`cli`) and the files it reads (`files`)."""
