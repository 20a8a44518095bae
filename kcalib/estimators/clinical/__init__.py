"""Statistics that papers on clinical prediction models report, for probabilities of one event."""
