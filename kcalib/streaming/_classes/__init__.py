"""States of class probabilities: contents, and results from their totals."""
