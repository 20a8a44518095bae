"""`read_answers`: predictions of language models in logs of evaluation harnesses and servers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kcalib._input.columns import FileError
from kcalib.streaming.forecast_tables.results import ModelForecasts
from kcalib.streaming.forecast_tables.table import is_path
from kcalib.streaming.language_models.logs import LogOptions, read_files, read_logs
from kcalib.streaming.language_models.source import LOGS
from kcalib.streaming.sources.opening import find_files, suffix_of


def read_answers(
    data: Any,
    *,
    labels: str | None = None,
    probs: str | None = None,
    choices: Iterable[str] | None = None,
    per_character: bool = False,
) -> tuple[ModelForecasts, ...]:
    """Read the predictions of language models in logs: answers to questions, confidences, or tokens of given texts.

    Parameters
    ----------
    data : path, list of paths, or iterable of dict
        Files of JSON lines or JSON, also compressed (.gz), a folder of them, or records. The content of each record is
        recognised: samples of ``lm_eval``, responses with ``top_logprobs`` and the right answer, ``prompt_logprobs`` or
        echoed prompts, ``confidence`` and ``correct``, ``probs`` and ``label``; see :doc:`/user_guide/language_models`.
    labels, probs : str, optional
        Names of the fields with the label or right answer and with the probabilities or confidence, if they differ from
        the names above or common ones such as "answer".
    choices : iterable of str, optional
        All possible answers in responses, such as "ABCD". Needed unless all right answers are yes or no, or true or
        false: an answer that is never right is possible, too.
    per_character : bool
        Whether to divide log-likelihoods of ``lm_eval`` by the number of characters of the choice, as its ``acc_norm``.

    Returns
    -------
    tuple of ModelForecasts
        One for each model that the records name, or else for each folder. ``y_pred`` has a column for each choice, 0 if
        a question lacks it. Confidences have shape (n,). Predictions of tokens are `kcalib.SparseProbabilities`, with
        the texts as ``clusters``. Pass ``lens=log.lens``: `kcalib.lenses.Confidence` for confidences, else None.
        ``tasks`` has the task and the short fields that all records share, including those of ``doc``.

    Raises
    ------
    FileNotFoundError, OSError
        If a file does not exist or cannot be opened.
    ValueError
        If no line can be used, if `choices` is needed, if only some confidences are in percent, if targets may be
        indices as well as texts or count from 1, or if only observed tokens are logged.

    Notes
    -----
    Records that cannot be used are counted by reason in ``unused``. Of tokens only the k most likely ones are kept:
    servers add the observed token if it is not among these, which would reveal the label. Generated tokens are not
    used, because they are drawn from the predictions and thus calibrated by construction. Log-probabilities after
    temperature or top-p are not used if a field ``logprobs_mode``, ``temperature`` or ``top_p`` indicates it.

    Examples
    --------
    >>> import kcalib
    >>> lines = [{"confidence": "90 %", "correct": True, "subject": "law"}, {"confidence": "unsure", "correct": False}]
    >>> (log,) = kcalib.streaming.read_answers(lines)
    >>> log.y_true.tolist(), log.y_pred.tolist(), log.unused
    ([True], [0.9], {'a confidence that is not one number': 1})
    """
    options = LogOptions(labels, probs, None if choices is None else tuple(map(str, choices)), per_character)
    paths = [data] if is_path(data) or isinstance(data, dict) else list(data)
    if not all(map(is_path, paths)):
        return read_logs((("model", record, {}) for record in paths), options)
    files = [file for path in paths for file in find_files(Path(path)) if suffix_of(file) in LOGS]
    if not files:
        raise FileError(f"{data!r} has no files with the suffixes {', '.join(LOGS)}; convert the log, or name others")
    return read_logs(read_files(files), options)
