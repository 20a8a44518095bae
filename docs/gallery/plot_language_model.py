"""
A language model, subject by subject
====================================

Is a model that answers questions calibrated in each subject? The example simulates a log of ``lm_eval`` for a benchmark
like MMLU, with 57 subjects. The model is over-confident in two of them.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np

import kcalib

rng = np.random.default_rng(0)
lines = []
for i in range(14_042):
    subject = "moral scenarios" if i % 20 == 0 else "professional law" if i % 20 == 1 else f"subject {i % 55 + 1}"
    logits = rng.normal(scale=2, size=4)
    right = rng.choice(4, p=np.exp(logits) / np.exp(logits).sum())
    logits *= {"moral scenarios": 2, "professional law": 1.6}.get(subject, 1)
    responses = [[str(value), "False"] for value in logits - 5]  # lm_eval writes numbers as strings
    lines.append({"doc": {"subject": subject}, "target": str(right), "filtered_resps": responses})

with TemporaryDirectory() as folder:
    file = Path(folder, "samples_mmlu.jsonl")
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (log,) = kcalib.streaming.read_answers(file)

print(kcalib.evaluate(log.y_true, log.y_pred, seed=0).verdict)

# %%
# `kcalib.worst_groups` tests each subject, with adjusted p-values.

worst = kcalib.worst_groups(log.y_true, log.y_pred, {"subject": log.tasks["subject"]}, seed=0)
groups = worst.groups[:12][::-1]
figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
for place, group in enumerate(groups):
    color = "C3" if group.pvalue_adjusted <= worst.level else "C0"
    axes.plot(group.confidence_interval, [place, place], color=color)
    axes.plot(group.gap, place, "o", color=color)
axes.axvline(0, color="0.7", zorder=0)
axes.set_yticks(range(len(groups)), [group.group.partition("=")[2] for group in groups])
axes.set_xlabel("mean confidence minus accuracy")
plt.show()
