"""Logs of language models: what harnesses and servers write of answers, confidences and tokens.

reading    `read_answers`, for users
source     a log as a source of samples
logs       what each record is, and what those of a model are together
answers    first tokens of responses, and confidences
questions  choices with log-likelihoods or probabilities, and which of them is right; samples of lm_eval
tokens     positions of given texts
"""
