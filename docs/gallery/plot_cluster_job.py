"""
A job on a cluster
==================

Each task of an array job adds its predictions to a small file of sums; a last job merges the files. A task that is
stopped goes on by ``--resume``, and the numbers are those of one run, bit for bit, in whichever order tasks end. Here
the tasks are three calls of the command on this machine.
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
