"""The control groups of Linux that the process is in: by these, containers, jobs and services have limits.

Called by `threads` for quotas of CPUs and by `memory` for limits of memory.
"""

from __future__ import annotations

from pathlib import Path

MOUNTS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def control_groups(controller: str, mounts: Path = MOUNTS, membership: Path = MEMBERSHIP) -> list[Path]:
    """Folders of the process's group for a controller and of those above it, versions 1 and 2; none elsewhere."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # no control groups
        return []
    groups = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots = [mounts, mounts / "unified"]  # version 2; beside version 1
        else:
            roots = [mounts / controller] if controller in controllers.split(",") else []
        for root in roots:
            group = root / path.lstrip("/")
            # Inside a container `path` may be the host's, with only the mount itself to be seen.
            groups += [folder for folder in (group, *group.parents) if folder.is_relative_to(root)]
    return groups
