"""States of predicted distributions: what they hold, their sums, and results from these."""
