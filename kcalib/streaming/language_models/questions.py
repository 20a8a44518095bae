"""Questions (predictions of choices and the right one) in samples of lm_eval and responses; confidences."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from kcalib._input.columns import LABEL_NAMES, FileError

UNKNOWN = -9998.0  # OpenAI and vLLM write -9999 for tokens that are not among the most likely ones
CORRECT = ("correct", "is_correct")
ANSWERS = ("answer", "answer_key", "correct_answer", "gold")
NUMBER = re.compile(r"(?<![\w.])([-+]?\d*\.?\d+(?:e[-+]?\d+)?)\s*(%?)", re.IGNORECASE)
RIGHT = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SEQUENCES = (LETTERS, LETTERS.lower(), "123456789", "0123456789")  # that choices are numbered by
# Right answers that tell all choices.
PAIRS = [
    (no, yes)
    for a, b in (("no", "yes"), ("false", "true"))
    for no, yes in ((a, b), (a.title(), b.title()), (a.upper(), b.upper()))
]

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
    is_mapping: bool = False  # whether the log names the choice of each value


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
    if ranks[1] > ranks[0]:
        best = texts
    else:
        best = indices
        check_places(questions)
    return [_place_by_score(q) if place is None else place for place, q in zip(best, questions, strict=True)]


def _agree(questions: Sequence[Question], places: Sequence[int | None]) -> int:
    """Return the number of questions for which the log agrees with these labels."""
    return sum(
        place is not None and question.is_right in (None, int(np.argmax(question.values)) == place)
        for question, place in zip(questions, places, strict=True)
    )


def read_index(question: Question) -> int | None:
    """Return the target as an index of the choices."""
    place = _read_number(question.target)
    return int(place) if 0 <= place < len(question.values) and place.is_integer() else None


def check_places(questions: Sequence[Question]) -> None:
    """Refuse targets that are counted from 1: none is 0, and some are the number of choices."""
    places = [(_read_number(question.target), len(question.values)) for question in questions]
    places = [(place, m) for place, m in places if not math.isnan(place)]
    if any(place == m for place, m in places) and all(1 <= place <= m for place, m in places):
        m = max(m for place, m in places if place == m)
        raise FileError(f"the targets look like 1..{m}, expected indices 0..{m - 1}; subtract 1 from each")


def _read_number(target: Any) -> float:
    """Return a number, which a file may hold as "2", "[2]" or "True"; NaN if it is none."""
    if isinstance(target, str):
        target = target.strip().removeprefix("[").removesuffix("]")
        target = {"True": 1, "False": 0}.get(target, target)
    try:
        return float(target)
    except (OverflowError, TypeError, ValueError):
        return math.nan


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


def choose_choices(answers: Sequence[Answer], given: Sequence[str] | None) -> Sequence[str]:
    """Return the choices: those that are given, or yes and no.

    Right answers do not tell other choices: one that is never right is a choice, too.
    """
    if given is not None:
        if len(set(given)) < max(2, len(given)):
            raise FileError(f"choices={list(given)} has not two or more different answers; pass all possible ones")
        return given
    is_letter = [type(right) is int and right in range(26) for right, _ in answers]
    texts = {LETTERS[a] if place else str(a).strip() for (a, _), place in zip(answers, is_letter, strict=True)}
    for pair in PAIRS:
        if texts <= set(pair):
            return pair
    possible = sorted(texts)[:4]
    for sequence in SEQUENCES:
        if texts <= set(sequence):
            last = sequence.index(max(texts))
            known = {*sequence[: last + 1], *set.intersection(*(set(logs) for _, logs in answers))}
            possible = list(takewhile(known.__contains__, sequence))
            break
    raise FileError(
        "`choices` is not given, and answers that are never right are possible, too; pass all possible answers, such "
        f"as choices={possible}"
    )


def read_probabilities(record: Mapping[str, Any], p: Any, labels: str | None) -> Question:
    """Return the question with probabilities of its choices."""
    is_mapping = isinstance(p, dict)
    choices, values = (p.keys(), list(p.values())) if is_mapping else (record.get("choices") or (), p)
    if len(values) < 2 or not all(0 <= value <= 1 for value in values):
        raise UnfitError("probabilities that are not two or more numbers in 0 to 1")
    if len(choices) not in (0, len(values)):
        raise UnfitError("another number of choices than of probabilities")
    target = find_value(record, labels, LABEL_NAMES)
    if is_mapping:  # whose keys are texts
        target = next((text for text in (str(target), str(target).lower()) if text in p), target)
    return Question(target, list(map(str, choices)), list(map(float, values)), is_mapping=is_mapping)


def align_choices(questions: Sequence[Question]) -> Sequence[Question]:
    """Return questions whose values are in the same order of choices, where the log names the same choices."""
    names = list(dict.fromkeys(name for question in questions for name in question.choices))
    longest = max((len(question.values) for question in questions), default=0)
    has_names = all(len(set(question.choices)) == len(question.values) for question in questions)
    has_mapping = any(question.is_mapping for question in questions)
    if has_mapping and not has_names:
        raise FileError(
            "some lines name the choices of their probabilities, others do not; write all as mappings, or name the "
            "choices of lists in the field 'choices'"
        )
    if has_mapping and len(names) > 10 * longest:
        raise FileError(
            f"there are probabilities of {len(names)} different choices, of at most {longest} in a line; write them as "
            "lists, and the choices of each line in the field 'choices'"
        )
    if not (has_names and (has_mapping or len(names) == longest)):
        return questions
    aligned = []
    for question in questions:
        target = question.target
        if not (question.is_mapping or isinstance(target, str)):  # an index of the choices of this line
            place = read_index(question)
            target = None if place is None else question.choices[place]
        by_name = dict(zip(question.choices, question.values, strict=True))
        aligned.append(Question(target, names, [by_name.get(name, 0.0) for name in names]))
    return aligned


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
