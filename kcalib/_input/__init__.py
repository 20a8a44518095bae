"""From what users pass to checked data: every check of labels, predictions and targets, and every message.

`labels.prepare` returns a `Classification`. Public functions call `forecasts.prepare`, which also takes predicted
distributions and then returns a `Forecasts`. Nothing after these functions checks again.
"""
