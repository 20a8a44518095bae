"""Pictures and pages of results, for ``plot`` methods and the command."""
