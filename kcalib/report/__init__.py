"""Results as pictures; called by results that have a ``plot`` method and by the command."""
