"""Predictions of the tokens of given texts: prompts in responses of vLLM, and echoed prompts of completions."""

from __future__ import annotations

from array import array as CArray
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kcalib._input.columns import FileError
from kcalib._input.sparse import LEAST_REST, SparseProbabilities
from kcalib.streaming.language_models.questions import UNKNOWN, UnfitError

Position = tuple[Hashable, Mapping[Any, float]]  # the observed token, and log-probabilities by token


class Text(NamedTuple):
    """The positions of a text that have predictions."""

    n_first: int  # number of positions without predictions
    places: CArray[int]  # in the text
    labels: CArray[int]  # ids of the observed tokens
    lengths: CArray[int]  # numbers of predicted tokens
    ids: CArray[int]  # of predicted tokens, the most likely first
    logs: CArray[float]  # their log-probabilities


def find_positions(body: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> list[Position | None] | None:
    """Return the positions of the prompt of a response with these answers, or None."""
    holders = (body, *parts)
    prompt = next((part["prompt_logprobs"] for part in holders if part.get("prompt_logprobs")), None)
    if prompt is not None:
        nothing = [None] * len(prompt)
        given = next((part["prompt_token_ids"] for part in holders if part.get("prompt_token_ids")), nothing)
        return [entries and _read_entries(entries, token) for token, entries in zip(given, prompt, strict=True)]
    logs = parts[0]["logprobs"]
    if not logs.get("tokens") or not logs.get("top_logprobs") or logs["token_logprobs"][0] is not None:
        return None
    if len(parts) > 1:
        raise UnfitError("several answers to one prompt; ask for one (n=1)")
    length = (body.get("usage") or {}).get("prompt_tokens")
    if length is None:
        raise UnfitError("no usage.prompt_tokens, which tells the prompt from generated tokens")
    echoed = zip(logs["tokens"][:length], logs["top_logprobs"], strict=False)
    return [entries and (token, entries) for token, entries in echoed]


def _read_entries(entries: Mapping[str, Any], observed: int | None) -> Position:
    """Return the observed token, which vLLM writes first, and log-probabilities."""
    if observed is None:
        if not all(isinstance(entry, dict) and isinstance(entry.get("rank"), int) for entry in entries.values()):
            raise UnfitError("neither prompt_token_ids nor ranks, one of which tells the observed token")
        if any(entry["rank"] > len(entries) for entry in list(entries.values())[1:]):
            raise UnfitError("entries in another order than vLLM writes them, and no prompt_token_ids")
    logs = {int(key): entry["logprob"] if isinstance(entry, dict) else entry for key, entry in entries.items()}
    return next(iter(logs)) if observed is None else observed, logs


def number_tokens(positions: Sequence[Position | None], vocabulary: dict[Hashable, int]) -> Text:
    """Return the positions of a text with token ids; `vocabulary` has the ids of textual tokens."""

    def number(token: Hashable) -> int:
        return token if isinstance(token, int) else vocabulary.setdefault(token, len(vocabulary))

    predicted = [(place, *position) for place, position in enumerate(positions) if position]
    n_first = len(positions) - len(predicted)
    text = Text(n_first, CArray("q"), CArray("q"), CArray("q"), CArray("q"), CArray("d"))
    for place, observed, entries in predicted:
        # Of tied tokens the observed one comes last, as if it was added to the k most likely ones.
        ranked = sorted(entries.items(), key=lambda entry: (-entry[1], entry[0] == observed))
        text.places.append(place)
        text.labels.append(number(observed))
        text.lengths.append(len(ranked))
        text.ids.extend(number(token) for token, _ in ranked)
        text.logs.extend(log if log > UNKNOWN else -np.inf for _, log in ranked)
    return text


def stack_texts(texts: Sequence[Text]) -> tuple[np.ndarray, SparseProbabilities, np.ndarray, int]:
    """Return labels, the k most likely tokens, the text number of each position, and k.

    Servers add the observed token to the k most likely ones if it is not among them. It would reveal the label, and
    calibrated models would fail. So k is the length of rows whose least likely token is not the observed one, and
    longer rows are cut.
    """
    labels, lengths, all_ids, all_logs = (
        np.concatenate([np.asarray(getattr(text, name)) for text in texts])
        for name in ("labels", "lengths", "ids", "logs")
    )
    is_entry = np.arange(lengths.max()) < lengths[:, None]
    ids, logs = np.full(is_entry.shape, -1), np.full(is_entry.shape, -np.inf)
    ids[is_entry], logs[is_entry] = all_ids, all_logs
    number = np.repeat(np.arange(len(texts)), [len(text.labels) for text in texts])
    longest = np.zeros(len(texts), np.int64)
    np.maximum.at(longest, number, lengths * (ids[np.arange(len(ids)), lengths - 1] != labels))
    k = int(longest[longest > 0].min() if longest.any() else lengths.max() - 1)
    if k < 1:
        raise FileError("holds only observed tokens; log the most likely ones, too (logprobs=20)")
    ids, logs = np.where(np.isfinite(logs), ids, -1)[:, :k], logs[:, :k]
    sums = np.logaddexp.reduce(logs, axis=1)
    logs = logs - np.clip(sums, 0.0, 1e-3)[:, None]  # rounded logarithms
    # 1 - sum without cancellation; rounded logarithms may leave a rest of 0 that contains a label.
    rest = np.maximum(-np.expm1(np.minimum(sums, 0.0)), LEAST_REST)
    n_tokens = max(int(ids.max()), int(labels.max())) + 2  # with a token that the log does not have
    return labels, SparseProbabilities(ids, np.exp(logs), n_tokens, rest), number, k
