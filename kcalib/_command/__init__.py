"""The command ``kcalib``: `cli` runs it, `arguments` are its options, `files` what it reads."""
