"""List the versions of the site in FOLDER: `python .ci/list_versions.py FOLDER`, of `.ci/site`.

Writes `versions.js`, which the selector of each page reads, and an `index.html` and `llms.txt` that lead to the newest
release, or to `dev` where there is none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def sort_key(name: str) -> tuple[int, ...]:
    """Order releases by number, `dev` before all."""
    return () if name == "dev" else tuple(int(part) if part.isdigit() else -1 for part in name.split("."))


def list_versions(folder: Path) -> list[str]:
    """Write the files and return the versions, newest first."""
    versions = sorted((page.parent.name for page in folder.glob("*/index.html")), key=sort_key, reverse=True)
    newest = versions[0]
    (folder / "versions.js").write_text(f"const kcalibVersions = {json.dumps(versions)};\n")
    (folder / "index.html").write_text(
        '<!doctype html><meta charset="utf-8"><title>kcalib</title>'
        f'<meta http-equiv="refresh" content="0; url={newest}/">'
        f'<a href="{newest}/">kcalib {newest}</a>\n'
    )
    (folder / "llms.txt").write_text((folder / newest / "llms.txt").read_text().replace("](", f"]({newest}/"))
    return versions


if __name__ == "__main__":
    print(*list_versions(Path(sys.argv[1])), sep="\n")
