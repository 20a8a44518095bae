"""Questions (predictions of choices and the right one) in samples of lm_eval and responses; confidences."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kcalib._input.columns import LABEL_NAMES, FileError

UNKNOWN = -9998.0  # OpenAI and vLLM write -9999 for tokens that are not among the most likely ones
CORRECT = ("correct", "is_correct")
ANSWERS = ("answer", "answer_key", "correct_answer", "gold")
NUMBER = re.compile(r"(?<![\w.])([-+]?\d*\.?\d+(?:e[-+]?\d+)?)\s*(%?)", re.IGNORECASE)
RIGHT = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
LETTERS = [chr(ord("A") + i) for i in range(26)]

Answer = tuple[Any, dict[str, float]]  # the right one, and log-probabilities by token
Confidence = tuple[float, bool, bool]  # number, whether it is in percent, whether the answer was right


class UnfitError(ValueError):
    """Why a record cannot be used: a reason to count by, and a detail."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(reason + detail)
        self.reason = reason


class Question(NamedTuple):
    target: Any  # index or text of the right choice
    choices: Sequence[str]  # empty if unknown
    values: Sequence[float]  # log-likelihoods or probabilities of the choices
    is_right: bool | None = None  # whether the likeliest choice is right, by the log


def read_question(sample: Mapping[str, Any], labels: str | None) -> Question:
    """Return the question in a sample of lm_eval, with log-likelihoods; `labels` may be a field of its `doc`."""
    responses = sample["filtered_resps"] if "filtered_resps" in sample else [first for first, *_ in sample["resps"]]
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in responses):
        raise UnfitError("no log-likelihoods of choices; its task is not of multiple choice")
    requests = sample.get("arguments", ())
    if isinstance(requests, dict):  # as files hold them
        requests = [tuple(request.values()) for request in requests.values()]
    half = len(requests) // 2
    # The metric acc_mutual_info also asks for each choice without its context.
    is_repeated = all(not aside[0] and aside[1] == r[1] for r, aside in zip(requests, requests[half:], strict=False))
    if half and len(requests) == 2 * half and is_repeated and any(request[0] for request in requests[:half]):
        requests, responses = requests[:half], responses[:half]
    values = [float(pair[0]) for pair in responses]
    if len(values) < 2:
        raise UnfitError("one choice alone; its task is not of multiple choice")
    if not math.isfinite(max(values)) or any(map(math.isnan, values)):
        raise UnfitError("log-likelihoods that are NaN or all minus infinity", f", {values}")
    target = sample.get("target") if labels is None else find_value({**sample.get("doc", {}), **sample}, labels, ())
    if isinstance(target, (list, tuple)) and len(target) == 1:
        (target,) = target
    is_right = None if sample.get("acc") is None else bool(sample["acc"])
    return Question(target, [request[1].strip() for request in requests], values, is_right)


def find_right_choices(questions: Sequence[Question]) -> list[int | None]:
    """Return the indices of right choices, None if the target is not a choice.

    Whether targets are indices or texts is decided once for all questions: by what most of them can be, then by what
    the log counts as right. A FileError says that both are possible.
    """
    readings = [[read(question) for question in questions] for read in (read_index, read_text)]
    ranks = [(len(places) - places.count(None), _agree(questions, places)) for places in readings]
    indices, texts = readings
    for a, b, question in zip(indices, texts, questions, strict=True):
        if ranks[0] == ranks[1] and a is not None and b is not None and a != b:
            raise FileError(
                f"the target {question.target!r} is the index of the choice {question.choices[a]!r} and the text of "
                "another one; log the metric 'acc', which tells them apart"
            )
    best = texts if ranks[1] > ranks[0] else indices
    return [_place_by_score(q) if place is None else place for place, q in zip(best, questions, strict=True)]


def _agree(questions: Sequence[Question], places: Sequence[int | None]) -> int:
    """Return the number of questions for which the log agrees with these labels."""
    return sum(
        place is not None and question.is_right in (None, int(np.argmax(question.values)) == place)
        for question, place in zip(questions, places, strict=True)
    )


def read_index(question: Question) -> int | None:
    """Return the target as an index, which a file may hold as "2", "[2]" or "True"."""
    target = question.target
    if isinstance(target, str):
        target = target.strip().removeprefix("[").removesuffix("]")
        target = {"True": 1, "False": 0}.get(target, target)
    try:
        place = float(target)
    except (TypeError, ValueError):
        return None
    return int(place) if 0 <= place < len(question.values) and place.is_integer() else None


def read_text(question: Question) -> int | None:
    """Return the index of the choice that equals the target; equal choices differ by their contexts."""
    target = question.target.strip() if isinstance(question.target, str) else None
    return question.choices.index(target) if target is not None and question.choices.count(target) == 1 else None


def _place_by_score(question: Question) -> int | None:
    """Return the right one of two equal choices in two contexts (winogrande), by the score of the likelier one."""
    if question.is_right is None or len(question.values) != 2 or len(set(question.choices)) != 1:
        return None
    likeliest = int(np.argmax(question.values))
    return likeliest if question.is_right else 1 - likeliest


def stack_rows(rows: Sequence[Sequence[float]], fill: float) -> np.ndarray:
    """Return rows of different lengths as a matrix, filled up."""
    matrix = np.full((len(rows), max(map(len, rows))), fill)
    for length in set(map(len, rows)):
        places = [i for i, row in enumerate(rows) if len(row) == length]
        matrix[places, :length] = [rows[i] for i in places]
    return matrix


def softmax_rows(values: Sequence[Sequence[float]]) -> np.ndarray:
    """Return probabilities from log-likelihoods; missing choices have probability 0."""
    matrix = stack_rows(values, -np.inf)
    powers = np.exp(matrix - matrix.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def find_value(record: Mapping[str, Any], name: str | None, names: Sequence[str]) -> Any:
    """Return a value of the record by the given name, or by the first recognised name."""
    return next((record[key] for key in ([name] if name else names) if record.get(key) is not None), None)


def read_answer(record: Mapping[str, Any], logs: Mapping[str, Any], labels: str | None) -> Answer:
    """Return the right answer, and the log-probabilities of the first token of the response that is not a space."""
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
    if not isinstance(entries, dict):  # of chats
        entries = {entry["token"]: entry["logprob"] for entry in entries}
    by_token: dict[str, float] = {}
    for token, log in entries.items():
        if log > UNKNOWN:
            by_token[token.strip()] = float(np.logaddexp(by_token.get(token.strip(), -np.inf), log))
    return right, by_token


def choose_choices(answers: Sequence[Answer]) -> list[str]:
    """Return the possible choices: letters up to the last right answer, as many as indices, or all right answers."""
    places = [right for right, _ in answers if isinstance(right, int)]
    texts = {right.strip() for right, _ in answers if isinstance(right, str)} | set(
        LETTERS[: max(places, default=-1) + 1]
    )
    return LETTERS[: LETTERS.index(max(texts)) + 1] if texts <= set(LETTERS) else sorted(texts)


def read_probabilities(record: Mapping[str, Any], p: Any, labels: str | None) -> Question:
    """Return the question with probabilities of its choices."""
    choices, values = (p.keys(), list(p.values())) if isinstance(p, dict) else (record.get("choices") or (), p)
    if len(values) < 2 or not all(0 <= value <= 1 for value in values):
        raise UnfitError("probabilities that are not two or more numbers in 0 to 1")
    return Question(find_value(record, labels, LABEL_NAMES), list(map(str, choices)), list(map(float, values)))


def read_confidence(record: Mapping[str, Any], value: Any, labels: str | None) -> Confidence:
    """Return the confidence of a record, which may be a text with one number."""
    right = RIGHT.get(str(find_value(record, labels, (*CORRECT, *LABEL_NAMES))).strip().lower())
    if right is None:
        raise UnfitError("neither true nor false, 1 nor 0, in 'correct'")
    numbers = NUMBER.findall(str(value))
    if len(numbers) != 1:
        raise UnfitError("a confidence that is not one number")
    return float(numbers[0][0]), numbers[0][1] == "%", right


def stack_confidences(items: Sequence[Confidence]) -> tuple[np.ndarray, np.ndarray, str]:
    """Return what was right, the confidences, and how they were read."""
    values, is_percent, right = (np.asarray(column) for column in zip(*items, strict=True))
    plain = values[~is_percent]
    fractions, percentages = plain[(plain > 0) & (plain < 1)], plain[plain > 1]
    if fractions.size and percentages.size:
        raise FileError(
            f"there are the confidences {fractions[0]:g} and {percentages[0]:g}, a fraction and a percentage; write "
            "all as fractions, or all with a %"
        )
    is_percent |= percentages.size > 0
    return right, np.where(is_percent, values / 100, values), "confidences" + " in percent" * bool(is_percent.all())
