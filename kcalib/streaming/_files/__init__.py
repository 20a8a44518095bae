"""States as files: their format, and the checks of what is read."""
