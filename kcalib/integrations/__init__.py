"""kcalib in other libraries: a module for each host library, which the user imports.

Nothing in kcalib imports these modules, and none imports two hosts: a host is needed for its own module only.
"""
