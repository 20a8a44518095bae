"""Logs of language models: recognise each record, and combine the records of a model."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kcalib._backend.files import printable
from kcalib._input.columns import PROBABILITY_NAMES, FileError
from kcalib._input.sparse import SparseProbabilities
from kcalib.lenses import Confidence
from kcalib.streaming.forecast_tables.results import ModelForecasts
from kcalib.streaming.language_models.questions import (
    Question,
    UnfitError,
    align_choices,
    check_places,
    choose_choices,
    find_right_choices,
    find_value,
    read_answer,
    read_confidence,
    read_index,
    read_probabilities,
    read_question,
    read_text,
    softmax_rows,
    stack_confidences,
    stack_rows,
)
from kcalib.streaming.language_models.tokens import find_positions, number_tokens, stack_texts
from kcalib.streaming.sources.content import damage_error
from kcalib.streaming.sources.reader import check_room

SAMPLES = re.compile(r"samples_(.+?)(_\d{4}-\d\d-\d\dT[\d.-]+)?")  # files of lm_eval
LONGEST = 64  # characters of a text that may name a group
# Fields that may indicate changed log-probabilities, and their harmless values.
RAW = {"logprobs_mode": ("raw_logprobs",), "temperature": (0, 1), "top_p": (0, 1)}
# Kinds of records that an option is for.
OWNERS = {
    "choices": "answers",
    "per_character": "log-likelihoods",
    "probs": "confidences and probabilities",
    "labels": "answers, log-likelihoods, confidences and probabilities",
}

Record = tuple[str, Any, dict[str, str]]  # model of the file, content of the line, fields from the file name


class LogOptions(NamedTuple):
    """Options of `read_answers`."""

    labels: str | None = None
    probs: str | None = None
    choices: tuple[str, ...] | None = None
    per_character: bool = False


@dataclass
class _Model:
    """What was read for a model: records by kind with their fields, and the reasons of unused ones."""

    name: str
    lines: dict[str, list[tuple[Any, dict[str, Any]]]] = field(default_factory=dict)
    unused: Counter[str] = field(default_factory=Counter)
    vocabulary: dict[Hashable, int] = field(default_factory=dict)
    questions: set[int] = field(default_factory=set)  # of lm_eval, which has a line for each filter

    def keep(self, kind: str, contents: Iterable[Any], is_kept: Sequence[bool], reason: str) -> list[Any]:
        """Drop records of a kind for a reason, and return the contents of the others."""
        self.unused[reason] += len(is_kept) - sum(map(bool, is_kept))
        self.lines[kind] = list(compress(self.lines[kind], is_kept))
        return list(compress(contents, is_kept))


def read_logs(records: Iterable[Record], options: LogOptions) -> tuple[ModelForecasts, ...]:
    """Return the content of records for each model."""
    models: dict[str, _Model] = {}
    named: dict[str, str] = {}  # a model that lines of a file name
    for file, record, task in records:
        name, body = file, record
        if isinstance(record, dict) and isinstance(response := record.get("response"), dict):
            body = response.get("body") or response  # of batches
        if isinstance(body, dict) and isinstance(body.get("model"), str):
            name = body["model"]
            named.setdefault(file, name)
        if name not in models:
            models[name] = _Model(name)
        model = models[name]
        try:
            kind, content = _recognise(record, body, model.vocabulary, options)
            if kind == "log-likelihoods" and "doc_id" in record:
                question = hash(repr([task, *map(record.get, ("doc_id", "doc", "arguments", "target"))]))
                if question in model.questions:
                    raise UnfitError("a question again, as another filter logs it; pass the lines of one filter")
                model.questions.add(question)
        except UnfitError as error:
            model.unused[error.reason] += 1
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            model.unused[f"fields that are not as logs have them ({type(error).__name__})"] += 1
        else:
            model.lines.setdefault(kind, []).append((content, _find_fields(record) | task))
    if not models:
        raise FileError("there are no lines, expected a JSON object on each")
    for file, name in named.items():  # failed requests have no model
        if file in models and not models[file].lines and file != name:
            models[name].unused.update(models.pop(file).unused)
    logs = tuple(_finish(model, options) for model in models.values())
    for log in logs:
        if log.y_true is None:
            reasons = ", ".join(f"{reason} ({n})" for reason, n in log.unused.items())
            raise FileError(f"{f'{log.model}: ' * (len(logs) > 1)}no line can be used: {reasons}")
    return logs


def read_files(files: Sequence[Path]) -> Iterator[Record]:
    """Yield the records of files."""
    samples: dict[Path, Path] = {}
    for file in files:
        stem = file.name.partition(".json")[0]
        task, name = SAMPLES.fullmatch(stem), file.resolve().parent.name if len(files) > 1 else stem
        first = samples.setdefault(file.parent / task[1] if task else file, file)
        if first != file:
            raise FileError(f"{printable(first)} and {file.name} are runs of one task; name the files of one run")
        for record in _read_records(file):
            yield name, record, {} if task is None else {"task": task[1]}


def _read_records(path: Path) -> Iterator[Any]:
    """Yield the content of each line or of each entry of a document; bytes of lines that are not JSON."""
    try:
        with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
            first = file.readline()
            if isinstance(_parse(first), bytes):  # a document on several lines
                check_room(2 * path.stat().st_size)
                document = _parse(whole := first + file.read())
                records = map(_parse, whole.splitlines()) if isinstance(document, bytes) else [document]
            else:
                records = map(_parse, (line for lines in ([first], file) for line in lines if line.strip()))
            for record in records:
                yield from record if isinstance(record, list) else (record,)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileError(f"{printable(path)}: {damage_error('the file', error)}") from None


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return line


def _find_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return short values of a record and its `doc`, by which samples can be grouped."""
    doc = record.get("doc")
    fields = {**doc, **record} if isinstance(doc, dict) else record
    return {
        name: value
        for name, value in fields.items()
        if (len(value) <= LONGEST if isinstance(value, str) else isinstance(value, (int, float)))
        and not name.endswith("_hash")
    }


def _recognise(record: Any, body: Any, vocabulary: dict[Hashable, int], options: LogOptions) -> tuple[str, Any]:
    """Return the kind and the content of a record."""
    if not isinstance(body, dict):
        raise UnfitError("no JSON object")
    if "filtered_resps" in record or "resps" in record:
        return "log-likelihoods", read_question(record, options.labels)
    parts = [part for part in body.get("choices") or () if isinstance(part, dict)]
    if "token_logprobs" in body:  # without what is around it
        parts = [{"logprobs": body}]
    if body.get("prompt_logprobs") or any(part.get("prompt_logprobs") or part.get("logprobs") for part in parts):
        _check_raw(record, body)
        positions = find_positions(body, parts)
        if positions is not None:
            return "tokens", number_tokens(positions, vocabulary)
        return "answers", read_answer(record, parts[0]["logprobs"], options.labels)
    if parts:
        raise UnfitError("no log-probabilities; ask for them (logprobs=True, top_logprobs=20)")
    value = find_value(record, options.probs, ("confidence", *PROBABILITY_NAMES))
    if isinstance(value, (list, dict)):
        return "probabilities", read_probabilities(record, value, options.labels)
    if value is None or not (options.probs or "confidence" in record):
        raise UnfitError("none of confidence, lists of probs, filtered_resps, choices with logprobs, prompt_logprobs")
    return "confidences", read_confidence(record, value, options.labels)


def _check_raw(record: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    """Refuse log-probabilities after temperature or top-p, if the record says so."""
    inner = [holder.get(name) for holder in (record, body) for name in ("request", "sampling_params", "body")]
    holders = [holder for holder in (record, body, *inner) if isinstance(holder, dict)]
    stated = {name: holder[name] for holder in holders for name in RAW if holder.get(name) is not None}
    if "logprobs_mode" in stated:
        stated = {"logprobs_mode": stated["logprobs_mode"]}
    if any(value not in RAW[name] for name, value in stated.items()):
        raise UnfitError(
            "log-probabilities after temperature or top-p, not those of the model; log them with logprobs_mode "
            "raw_logprobs, and say so in the line"
        )


def _finish(model: _Model, options: LogOptions) -> ModelForecasts:
    """Return the forecasts of a model, of the kind of most records."""
    kind = max(model.lines, key=lambda kind: len(model.lines[kind]), default="")
    model.unused["another kind of log"] += sum(map(len, model.lines.values())) - len(model.lines.setdefault(kind, []))
    for option, owners in OWNERS.items():
        if getattr(options, option) and kind not in owners:
            raise FileError(f"{model.name} has {kind}, but `{option}` is for {owners}; leave it out")
    contents: Any = [content for content, _ in model.lines[kind]]
    true: np.ndarray | None = None
    pred: SparseProbabilities | np.ndarray | None = None
    number: np.ndarray | None = None
    read_as, of_samples = "", {}
    if kind == "tokens":
        model.unused["the first token of a text, which nothing predicts"] += sum(text.n_first for text in contents)
        if any(text.labels for text in contents):
            true, pred, number, k = stack_texts(contents)
            places = np.asarray([place for text in contents for place in text.places])
            of_samples, read_as = {"text": number, "position": places}, f"the {k} most likely tokens of texts"
    elif kind == "confidences":
        right, confidences, read_as = stack_confidences(contents)
        fits = (confidences >= 0) & (confidences <= 1)
        true, pred = right[fits], confidences[fits]
        model.keep(kind, contents, fits.tolist(), "a confidence outside 0 to 1 or 0 to 100 %")
    elif kind:
        true, pred, read_as = _stack_questions(model, kind, contents, options)
    columns = _make_columns([fields for _, fields in model.lines[kind]])
    tasks = columns if number is None else {name: column[number] for name, column in columns.items()}
    n, unused = 0 if true is None else len(true), {reason: n for reason, n in model.unused.most_common() if n}
    lens = Confidence() if kind == "confidences" else None
    true, pred = (true, pred) if n else (None, None)
    counts = (n + sum(unused.values()), n, unused)
    return ModelForecasts(model.name, n, true, pred, tasks | of_samples, *counts, read_as, lens, number)


def _stack_questions(
    model: _Model, kind: str, contents: list[Any], options: LogOptions
) -> tuple[np.ndarray, np.ndarray, str]:
    """Return indices of right choices, a row of probabilities for each question, and how they were read."""
    read_as = "softmax of log-likelihoods of choices" if kind == "log-likelihoods" else "probabilities of choices"
    if kind == "answers":
        texts = choose_choices(contents, options.choices)
        read_as = f"first tokens of answers among {', '.join(texts)}"
        fits = [all(text in logs for text in texts) for _, logs in contents]
        reason = f"a choice of {', '.join(texts)} that is not among the top_logprobs; ask for more (top_logprobs=20)"
        contents = model.keep(kind, contents, fits, reason)
        contents = [Question(right, texts, [logs[text] for text in texts]) for right, logs in contents]
    if kind != "log-likelihoods":
        check_places([question for question in contents if not isinstance(question.target, str)])
    if kind == "probabilities":
        contents = list(align_choices(contents))
    if options.per_character:
        read_as += " per character"
        fits = [all(q.choices) and len(q.choices) == len(q.values) for q in contents]
        contents = model.keep(kind, contents, fits, "choices without the texts whose characters are counted")
        contents = [q._replace(values=[x / len(c) for x, c in zip(q.values, q.choices, strict=True)]) for q in contents]
    tasks = [fields.get("task") for _, fields in model.lines[kind]]
    places = [read_text(q) if isinstance(q.target, str) else read_index(q) for q in contents]
    for task in dict.fromkeys(tasks) if kind == "log-likelihoods" else ():  # whose files hold targets as strings
        rows = [i for i, other in enumerate(tasks) if other == task]
        for i, place in zip(rows, find_right_choices([contents[i] for i in rows]), strict=True):
            places[i] = place
    fits = [place is not None for place in places]
    contents = model.keep(kind, contents, fits, "a target that is none of the choices")
    true = np.asarray([place for place in places if place is not None], np.int64)
    values = [question.values for question in contents] or [[0.0]]
    return true, stack_rows(values, 0.0) if kind == "probabilities" else softmax_rows(values), read_as


def _make_columns(fields: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the fields that all records share as columns of numbers or texts."""
    shared = set(fields[0]).intersection(*fields[1:]) if fields else set()
    return {name: np.asarray([line[name] for line in fields]) for name in (fields or [{}])[0] if name in shared}
