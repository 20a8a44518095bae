"""From what users pass to checked data: every check on labels, predictions and targets, and every message.

`labels.prepare` gives a `Classification`; `forecasts.prepare`, which public functions call, also takes predicted
distributions, and gives a `Forecasts` for them. Nothing behind this room checks again.
"""
