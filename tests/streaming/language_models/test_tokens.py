"""Tokens of given texts, as vLLM and completions log them: the observed one is added to the k most likely ones."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import kcalib
from kcalib.kernels import Exponential
from kcalib.streaming import CalibrationState, read_answers, run, source

K, M = 3, 12


def texts_of(n_texts, length, seed):
    """Positions of a calibrated model: all log-probabilities, and the observed token."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(M, 0.3), size=(n_texts, length))
    y = (p.cumsum(axis=2) < rng.uniform(size=(n_texts, length, 1))).sum(axis=2)
    return np.log(p), y


def as_vllm(logs, y, **more):
    """The observed token comes first, and again among the k most likely ones if it is one of them."""
    prompt = [None]
    for row, label in zip(logs, y.tolist(), strict=True):
        order = np.argsort(-row).tolist()
        ranks = {label: order.index(label) + 1} | {token: rank + 1 for rank, token in enumerate(order[:K])}
        prompt.append({str(t): {"logprob": row[t], "rank": r, "decoded_token": f"<{t}>"} for t, r in ranks.items()})
    return {"model": "m", "prompt_logprobs": prompt} | more


def as_completion(logs, y):
    """The same by texts of tokens, echoed before a generated one."""
    tops = [{f"<{t}>": row[t] for t in [*np.argsort(-row)[:K], label]} for row, label in zip(logs, y, strict=True)]
    parts = {
        "tokens": ["<s>", *(f"<{label}>" for label in y), "<0>"],
        "token_logprobs": [None, *(row[label] for row, label in zip(logs, y, strict=True)), -0.1],
        "top_logprobs": [None, *tops, {"<0>": -0.1, "<1>": -9.0, "<2>": -9.0}],
    }
    usage = {"prompt_tokens": len(y) + 1, "completion_tokens": 1}
    return {"model": "m", "choices": [{"text": "", "logprobs": parts}], "usage": usage}


@pytest.mark.parametrize("write", [as_vllm, as_completion])
def test_the_most_likely_tokens_are_kept(write):
    """Whatever the observed one is; a token that is added to them does not stay."""
    logs, y = texts_of(4, 25, 0)
    (log,) = read_answers([write(*text) for text in zip(logs, y, strict=True)])
    top = -np.sort(-np.exp(logs.reshape(100, M)), axis=1)[:, :K]
    np.testing.assert_allclose(log.y_pred.probabilities, top, rtol=1e-12)
    np.testing.assert_allclose(log.y_pred.rest, 1 - top.sum(axis=1), rtol=1e-9)
    assert log.clusters.tolist() == log.tasks["text"].tolist() == np.repeat(range(4), 25).tolist()
    assert log.tasks["position"][:3].tolist() == [1, 2, 3] and log.n_rows == 104
    assert log.unused == {"the first token of a text, which nothing predicts": 4}
    places = np.argsort(-logs.reshape(100, M), axis=1)[:, :K]
    if write is as_vllm:
        assert log.y_true.tolist() == y.ravel().tolist() and log.y_pred.ids.tolist() == places.tolist()
    is_kept = np.any(places == y.ravel()[:, None], axis=1)
    assert np.any(log.y_pred.ids == log.y_true[:, None], axis=1).tolist() == is_kept.tolist()


def test_added_tokens_would_make_a_calibrated_model_fail():
    """Kept, the observed token is among those of each row, and the rest never occurs."""
    logs, y = texts_of(40, 50, 1)
    (log,) = read_answers([as_vllm(*text) for text in zip(logs, y, strict=True)])
    assert kcalib.evaluate(log.y_true, log.y_pred, clusters=log.clusters, seed=0).test.pvalue > 0.05
    flat, labels = logs.reshape(-1, M), y.ravel()
    ids = np.column_stack([np.argsort(-flat, axis=1)[:, :K], labels])
    ids[np.any(ids[:, :K] == labels[:, None], axis=1), K] = -1
    added = kcalib.SparseProbabilities(ids, np.exp(np.take_along_axis(flat, ids, axis=1)), M)
    assert kcalib.evaluate(labels, added, seed=0).test.pvalue < 0.01


def test_what_says_which_token_was_observed():
    logs, y = texts_of(1, 30, 2)
    whole = as_vllm(logs[0], y[0])
    expected = read_answers([whole])[0].y_true.tolist()
    in_order = [row and dict(sorted(row.items())) for row in whole["prompt_logprobs"]]
    with pytest.raises(ValueError, match="used: entries in another order than vLLM writes them, and no prompt_token_"):
        read_answers([{"prompt_logprobs": in_order}])
    given = {"prompt_logprobs": in_order, "prompt_token_ids": [0, *y[0].tolist()]}
    assert read_answers([given])[0].y_true.tolist() == expected  # the remedy
    bare = [row and {token: entry["logprob"] for token, entry in row.items()} for row in in_order]
    with pytest.raises(
        ValueError, match="used: neither prompt_token_ids nor ranks, one of which tells the observed token"
    ):
        read_answers([{"prompt_logprobs": bare}])
    again = {"choices": [given | {"prompt_logprobs": bare}]}  # within an answer
    assert read_answers([again])[0].y_true.tolist() == expected
    with pytest.raises(ValueError, match="holds only observed tokens; log the most likely ones, too"):
        read_answers(
            [
                {
                    "prompt_logprobs": [
                        row and {next(iter(row)): next(iter(row.values()))} for row in whole["prompt_logprobs"]
                    ]
                }
            ]
        )


def test_tied_rounded_and_unknown_log_probabilities():
    """Of tokens tied with the last of two the added one goes; sums just above 1; -9999 is unknown, not impossible."""
    rows = [
        {"7": -1.0, "3": -0.5, "5": -1.0},
        {"3": 1e-7, "5": -17.0},
        {"5": -0.7, "3": -9999.0},
        {"3": -0.1, "9": -3.0},
    ]
    prompt = [{token: {"logprob": x, "rank": i + 1} for i, (token, x) in enumerate(row.items())} for row in rows]
    (log,) = read_answers([{"prompt_logprobs": [None, *prompt], "prompt_token_ids": [0, 7, 3, 3, 3]}])
    assert (
        log.y_pred.ids.tolist() == [[3, 5], [3, 5], [5, -1], [3, 9]]
        and log.read_as == "the 2 most likely tokens of texts"
    )
    assert log.y_pred.rest == pytest.approx(
        [1 - math.exp(-0.5) - math.exp(-1), 1e-6, 1 - math.exp(-0.7), 1 - math.exp(-0.1) - math.exp(-3)]
    )


def test_a_label_outside_a_rest_that_rounding_ate_is_not_impossible():
    rows = [{"7": {"logprob": -18.0, "rank": 3}}, *[{}] * 99]
    tops = {"3": {"logprob": 0.0, "rank": 1}, "5": {"logprob": -17.0, "rank": 2}}
    (log,) = read_answers(
        [{"prompt_logprobs": [None, *(row | tops for row in rows)], "prompt_token_ids": [0, 7] + [3] * 99}]
    )
    result = kcalib.calibration_test(log.y_true, log.y_pred, seed=0)
    assert result.pvalue > 0 and "has probability 0" not in result.null_law


def test_generated_tokens_and_unclear_prompts():
    logs, y = texts_of(1, 5, 3)
    echoed = as_completion(logs[0], y[0])
    generated = {"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [-0.1], "top_logprobs": [{"a": -0.1}]}}]}
    several, unclear = echoed | {"choices": echoed["choices"] * 2}, echoed | {"usage": None}
    for record, reason in (
        (generated, "generated tokens, which"),
        (several, "several answers"),
        (unclear, "no usage.prom"),
    ):
        with pytest.raises(ValueError, match=f"no line can be used: {reason}"):
            read_answers([record])
    bare = echoed["choices"][0]["logprobs"] | {"usage": echoed["usage"]}
    assert read_answers([bare])[0].n_samples == 5


def test_sources_add_tokens_up_in_buckets(tmp_path):
    """A text is a cluster, also where nothing says so."""
    logs, y = texts_of(60, 20, 4)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(as_vllm(*text)) + "\n" for text in zip(logs, y, strict=True)))
    (log,) = read_answers(path)
    samples, options = source(path), {"kernel": Exponential(0.5), "n_columns": 16, "clusters": True}
    whole = CalibrationState(samples.n_classes, **options).update(log.y_true, log.y_pred, clusters=log.clusters)
    assert run(CalibrationState(samples.n_classes, **options), samples, chunk_rows=512) == whole
    assert "signs of 60 clusters" in kcalib.evaluate(samples).test.null_law
    with pytest.raises(ValueError, match="make it with clusters=True"):
        run(CalibrationState(samples.n_classes), samples)
    assert log.split("position")[0].y_pred.shape == (60, log.y_pred.n_classes)


def test_a_comparison_of_sources_says_how_to_compare_logs(tmp_path):
    logs, y = texts_of(8, 25, 6)
    files = {"a": tmp_path / "a.jsonl", "b": tmp_path / "b.jsonl"}
    for file, power in zip(files.values(), (1, 2), strict=True):
        scaled = power * logs - np.log(np.exp(power * logs).sum(axis=2, keepdims=True))
        file.write_text("".join(f"{json.dumps(as_vllm(*text))}\n" for text in zip(scaled, y, strict=True)))
    message = "tokens in clusters, .* kcalib.streaming.read_answers, and kcalib"
    with pytest.raises(ValueError, match=message):
        kcalib.compare({name: source(file) for name, file in files.items()}, metric="brier_score")
    read = {name: read_answers(file)[0] for name, file in files.items()}
    predictions = {name: log.y_pred for name, log in read.items()}
    comparison = kcalib.compare(read["a"].y_true, predictions, metric="log_loss", clusters=read["a"].clusters)
    assert comparison.ranking == ("a", "b")
