"""The exact SKCE of a file of predictions, on the Dask cluster that slurm_dask.sh makes of the tasks of a job."""

import os
import sys

import numpy as np
from dask_jobqueue.slurm import SLURMRunner
from distributed import Client

import kcalib

if __name__ == "__main__":
    file, interface = sys.argv[1], os.environ.get("KCALIB_INTERFACE")  # such as ib0; None: Dask chooses
    runner = SLURMRunner(
        scheduler_file=f"{file}.{{job_id}}.json",  # in a folder that all nodes see
        scheduler_options={"interface": interface, "dashboard": False},
        worker_options={"interface": interface, "nthreads": 1},  # a task at a time, and `threads` for it
    )
    with runner, Client(runner) as client:
        client.wait_for_workers(runner.n_workers)
        threads = int(os.environ.get("SLURM_CPUS_PER_TASK", "1"))
        parallel = kcalib.parallel.Dask(client, threads=threads, journal=f"{file}.journal")
        with np.load(file) as samples:
            result = kcalib.skce.result(samples["labels"], samples["probs"], backend=parallel)
        print(f"SKCE {result.value:.3e}, standard error {result.standard_error:.1e}; {result.backend_reason}")
