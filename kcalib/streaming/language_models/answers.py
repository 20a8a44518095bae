"""Answers to questions: by the first token of a response, by probabilities, or with a confidence."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kcalib._input.columns import LABEL_NAMES, FileError
from kcalib.streaming.language_models.questions import Question, UnfitError
from kcalib.streaming.language_models.tokens import UNKNOWN

CORRECT = ("correct", "is_correct")
ANSWERS = ("answer", "answer_key", "correct_answer", "gold")
NUMBER = re.compile(r"(?<![\w.])([-+]?\d*\.?\d+)\s*(%?)")
RIGHT = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
LETTERS = [chr(ord("A") + i) for i in range(26)]

Answer = tuple[Any, dict[str, float]]  # the right one, and log-probabilities by token
Confidence = tuple[float, bool, bool]  # the number, whether it is in percent, and whether the answer was right


def find_value(record: Mapping[str, Any], name: str | None, names: Sequence[str]) -> Any:
    """Return what the record has by the name that was given, or by the first of those that are recognised."""
    return next((record[key] for key in ([name] if name else names) if record.get(key) is not None), None)


def read_answer(record: Mapping[str, Any], logs: Mapping[str, Any], labels: str | None) -> Answer:
    """Return the right answer, and what the response has for its first token that is no space."""
    right = find_value(record, labels, (*LABEL_NAMES, *ANSWERS))
    if right is None:
        raise UnfitError(
            "generated tokens, which are drawn from the predictions: calibrated by construction; log the right answers "
            "of questions, or tokens of given texts (echo=True, prompt_logprobs)"
        )
    tokens = logs.get("tokens") or [token["token"] for token in logs["content"]]
    tops = logs.get("top_logprobs") or [token.get("top_logprobs") for token in logs["content"]]
    entries = next((top for token, top in zip(tokens, tops, strict=True) if token.strip()), None)
    if not entries:
        raise UnfitError("no top_logprobs; ask for them (logprobs=True, top_logprobs=20)")
    if not isinstance(entries, Mapping):  # of chats
        entries = {entry["token"]: entry["logprob"] for entry in entries}
    by_token: dict[str, float] = {}
    for token, log in entries.items():
        if log > UNKNOWN:
            by_token[token.strip()] = float(np.logaddexp(by_token.get(token.strip(), -np.inf), log))
    return right, by_token


def choose_choices(answers: Sequence[Answer]) -> list[str]:
    """Return the choices that right answers are of: letters up to the last one, as many as places, or their texts."""
    texts = {str(right).strip() for right, _ in answers}
    if all(re.fullmatch(r"1?\d|2[0-5]", text) for text in texts):
        return LETTERS[: max(map(int, texts)) + 1]
    return LETTERS[: LETTERS.index(max(texts)) + 1] if texts <= set(LETTERS) else sorted(texts)


def read_probabilities(record: Mapping[str, Any], p: Any, labels: str | None) -> Question:
    """Return the question with probabilities of its choices."""
    choices, values = (p.keys(), list(p.values())) if isinstance(p, Mapping) else (record.get("choices") or (), p)
    if len(values) < 2:
        raise UnfitError("probabilities of fewer than two choices")
    return Question(find_value(record, labels, LABEL_NAMES), list(map(str, choices)), list(map(float, values)))


def read_confidence(record: Mapping[str, Any], value: Any, labels: str | None) -> Confidence:
    """Return the confidence that a record says, which may be a text with one number."""
    right = RIGHT.get(str(find_value(record, labels, (*CORRECT, *LABEL_NAMES))).strip().lower())
    if right is None:
        raise UnfitError("neither true nor false, 1 nor 0, in 'correct'")
    numbers = NUMBER.findall(str(value))
    if len(numbers) != 1:
        raise UnfitError("a confidence that is not one number")
    return float(numbers[0][0]), numbers[0][1] == "%", right


def stack_confidences(items: Sequence[Confidence]) -> tuple[np.ndarray, np.ndarray, str]:
    """Return what was right, confidences, of which others than 0 to 1 are wrong, and how they were read."""
    values, is_percent, right = (np.asarray(column) for column in zip(*items, strict=True))
    plain = values[~is_percent]
    fractions, percentages = plain[(plain > 0) & (plain < 1)], plain[plain > 1]
    if fractions.size and percentages.size:
        raise FileError(
            f"there are the confidences {fractions[0]:g} and {percentages[0]:g}, of which one is no percentage and "
            "the other no fraction; write all of them in one way, or with a %"
        )
    is_percent |= percentages.size > 0
    return right, np.where(is_percent, values / 100, values), "confidences" + " in percent" * bool(is_percent.all())
