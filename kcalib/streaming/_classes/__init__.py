"""States of class probabilities: what they hold, and results from their totals."""
