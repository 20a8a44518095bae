"""`read_answers`: predictions of language models in the logs that harnesses and servers write."""

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
        Files of JSON lines, or of one JSON document, also compressed (.gz), or a folder of them; or their records. Each
        is recognised: samples of ``lm_eval``, responses with ``top_logprobs`` and the right answer, ``prompt_logprobs``
        or echoed prompts, ``confidence`` and ``correct``, ``probs`` and ``label``: :doc:`/user_guide/language_models`.
    labels, probs : str, optional
        Names of the fields with the label or right answer, and with the probabilities or the confidence, if they have
        others; right answers are also called "answer" and the like.
    choices : iterable of str, optional
        Answers that are possible in responses, such as "ABCD". Default: the letters up to the last right answer, or the
        texts of all right answers.
    per_character : bool
        Whether to divide log-likelihoods of ``lm_eval`` by the number of characters of the choice, as its ``acc_norm``.

    Returns
    -------
    tuple of ModelForecasts
        For each model that the lines name, or else of each folder. ``y_pred`` has a column for each choice, 0 for those
        that a question lacks; confidences have shape (n,), and ``lens`` is `kcalib.lenses.Confidence`; predictions of
        tokens are `kcalib.SparseProbabilities`, and ``clusters`` their texts. ``tasks`` has the short fields that all
        lines have, also those of ``doc``, and the task.

    Raises
    ------
    FileNotFoundError, OSError
        If a file is not there, or the system refuses to open it.
    ValueError
        If some confidences are in percent and others not, if targets could be places and texts, or if only observed
        tokens are logged.

    Notes
    -----
    Lines that do not fit are counted by reason in ``unused``. Of tokens the k most likely ones are kept: servers add
    the observed one where it is not among them, which would tell the label. Generated tokens are not used: they are
    drawn from the predictions, and so calibrated by construction. Nor are log-probabilities after temperature or top-p,
    where a line has a ``logprobs_mode``, ``temperature`` or ``top_p`` that says so.

    Examples
    --------
    >>> import kcalib
    >>> lines = [{"confidence": "90 %", "correct": True, "subject": "law"}, {"confidence": "unsure", "correct": False}]
    >>> (log,) = kcalib.streaming.read_answers(lines)
    >>> log.y_true.tolist(), log.y_pred.tolist(), log.unused
    ([True], [0.9], {'a confidence that is not one number': 1})
    """
    options = LogOptions(labels, probs, None if choices is None else tuple(choices), per_character)
    paths = [data] if is_path(data) or isinstance(data, dict) else list(data)
    if not all(map(is_path, paths)):
        return read_logs((("model", record, {}) for record in paths), options)
    files = [file for path in paths for file in find_files(Path(path)) if suffix_of(file) in LOGS]
    if not files:
        raise FileError(f"{data!r} has no files of the suffixes {', '.join(LOGS)}; convert the log, or name others")
    return read_logs(read_files(files), options)
