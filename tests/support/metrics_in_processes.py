"""What metrics of torchmetrics say in one of several processes of torch.distributed (gloo): run by their test.

    python metrics_in_processes.py RANK N_PROCESSES FOLDER

FOLDER has samples.npz, of batches that the processes take in turn, and gets a file of each process's values.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from kcalib.integrations.torchmetrics import ECE, SKCE, CalibrationTest, Reliability


def main(rank: int, n_processes: int, folder: Path) -> None:
    with np.load(folder / "samples.npz") as file:
        preds, target = torch.from_numpy(file["preds"]), torch.from_numpy(file["target"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=n_processes)
    found = {}
    m = preds.shape[-1]
    for on_step in (False, True):
        metrics = {
            "ece": ECE(m, dist_sync_on_step=on_step),
            "skce": SKCE(m, n_columns=64, dist_sync_on_step=on_step),
            "test": CalibrationTest(m, n_columns=64, dist_sync_on_step=on_step),
            "reliability": Reliability(m, dist_sync_on_step=on_step),
        }
        for name, metric in metrics.items():
            steps = [metric(preds[i], target[i]) for i in range(rank, len(preds), n_processes)]
            all_steps = [
                {k: v.tolist() for k, v in one.items()} if isinstance(one, dict) else float(one) for one in steps
            ]
            value = metric.compute()
            whole = {k: v.tolist() for k, v in value.items()} if isinstance(value, dict) else float(value)
            assert not metric._is_synced
            found[f"{name} {on_step}"] = {"steps": all_steps, "whole": whole}
        found[f"evaluation {on_step}"] = metrics["test"].evaluation().n_samples
        found[f"diagram {on_step}"] = metrics["reliability"].diagram().n_samples
    empty = ECE(m)  # a process without samples
    if rank == 0:
        empty.update(preds[0], target[0])
        found["rank 0 alone"] = float(ECE(m)(preds[0], target[0]))
    empty._update_count = 1
    found["one rank"] = float(empty.compute())
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
