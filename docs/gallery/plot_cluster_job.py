"""
A job on a cluster
==================

How do I evaluate predictions in an array job? Each task adds its predictions to a small file of sums, and a last job
merges the files. With ``--resume`` a task that was stopped continues. The result is identical to the result of one run,
bit for bit, for any order of tasks. Here the tasks are three calls of the command on one machine.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from kcalib.streaming import load

folder = Path(tempfile.mkdtemp())


def run_kcalib(*arguments):
    command = [sys.executable, "-P", "-m", "kcalib", *map(str, arguments)]
    print(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)


for task in range(3):  # SLURM_ARRAY_TASK_ID
    rng = np.random.default_rng(task)
    p = rng.dirichlet(np.ones(4), size=20_000)
    labels = (rng.uniform(size=(len(p), 1)) > p.cumsum(axis=1)).sum(axis=1)
    np.savez(folder / f"{task}.npz", probs=p, labels=labels)
    run_kcalib("update", f"{task}.kcalib", f"{task}.npz", "--part", task, "--bandwidth", 0.7, "--resume")

# %%
# The last job waits for the tasks (``sbatch --dependency=afterok:ID``).

run_kcalib("merge", *(f"{task}.kcalib" for task in range(3)), "-o", "all.kcalib")
run_kcalib("show", "all.kcalib")

figure, axes = plt.subplots(figsize=(5, 6), layout="constrained")
load(folder / "all.kcalib").reliability().plot(axes)
plt.show()
