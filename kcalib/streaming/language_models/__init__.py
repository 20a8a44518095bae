"""Logs of language models: what harnesses and servers write of answers, confidences and tokens."""
