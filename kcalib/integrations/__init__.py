"""kcalib in the tools that people already use: a module for each host, which the user imports.

Nothing of kcalib imports this room, and no module of it another one of a second host: a host has to be installed only
for its own module.
"""
