"""Jobs on a Slurm that is there, for tests of the documentation's scripts; `slurm_on_one_machine.sh` starts one.

A requeued job waits for as long as its old credential is valid, 120 seconds where `AuthInfo` does not say otherwise.
The tests wait, too. `scontrol update StartTime=now` would start it sooner, but in the second in which it ended a node
finds the credential revoked ("already killed, do not launch batch job" in its log), and the job has failed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REQUEUED = 400  # seconds that a job may take to start again
COMMANDS = ("squeue --all --long --array", "sinfo --long --Node", "scontrol --oneliner show job")
TAIL = 6000  # characters of each text that a failure shows


def slurm(*arguments: Any) -> str:
    """What a command of Slurm says."""
    found = subprocess.run([*map(str, arguments)], capture_output=True, text=True)
    assert found.returncode == 0, f"{arguments} failed: {found.stderr}"
    return found.stdout.strip()


def partitions() -> set[str]:
    """Names of the partitions that are there; none without a Slurm that answers."""
    if shutil.which("sbatch") is None:
        return set()
    found = subprocess.run(["sinfo", "-h", "-o", "%R"], capture_output=True, text=True)
    return set(found.stdout.split()) if found.returncode == 0 else set()


def states_of(job: str) -> list[str]:
    """Number and state of each task of a job, such as "1 PD"; none when all is over or forgotten."""
    found = subprocess.run(["squeue", "-h", "-r", "-o", "%K %t", "-j", job], capture_output=True, text=True)
    return found.stdout.splitlines() if found.returncode == 0 else []


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait for something, and return it; a failure says how Slurm and the jobs of the current folder are."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} within {seconds} seconds\n{situation()}"
        time.sleep(0.5)
    return found


def situation() -> str:
    """What Slurm says of all jobs and nodes, and the ends of its logs and of those of the jobs."""
    texts = {}
    for command in COMMANDS:
        found = subprocess.run(command.split(), capture_output=True, text=True)
        texts[command] = found.stdout + found.stderr
    config = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True).stdout
    of_daemons = [Path(name) for name in re.findall(r"^Slurm(?:ctld|d)LogFile\s*=\s*(/\S+)", config, re.MULTILINE)]
    for path in [*of_daemons, *sorted(Path.cwd().glob("*.log"))]:
        texts[path.name] = path.read_text(errors="replace") if path.is_file() else "no such file"
    return "\n".join(f"--- {name}\n{text[-TAIL:].rstrip()}" for name, text in texts.items())
