"""States of predicted distributions: contents, sums, and results."""
