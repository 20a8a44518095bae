"""What a reader of the built site has to find: `python .ci/check_site.py FOLDER`, of `.ci/docs` after the pages.

No page asks another host, every link to a page of the site leads to one, the landing page has its install line and its
three cards, every program of the gallery its picture and its downloads, and code its copy buttons.
"""

from __future__ import annotations

import sys
import tomllib
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
BESIDE = "history"  # what `.ci/docs` puts beside these pages afterwards
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class Page(HTMLParser):
    """Links, what is loaded, and the classes of elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.classes: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.classes += given.get("class", "").split()
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        address = LOADED.get(tag)
        if address in given and not (tag == "link" and given.get("rel") in ("canonical", "search", "next", "prev")):
            self.loaded.append(given[address])

    def handle_data(self, data: str) -> None:
        self.words += data.split()


def faults(folder: Path, n_examples: int, repository: str | None) -> list[str]:
    """What is wrong, a line each."""
    pages = {path: Page(path.read_text()) for path in sorted(folder.rglob("*.html")) if BESIDE not in path.parts}
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder)
        found += [f"{name}: loads {address}" for address in page.loaded if urlsplit(address).netloc]
        for address in [*page.links, *page.loaded]:
            parts = urlsplit(address)
            target = path.parent / unquote(parts.path)
            outside = parts.scheme or parts.netloc or not parts.path or f"{BESIDE}/" in parts.path
            if not outside and not target.exists():
                found.append(f"{name}: {address} leads nowhere")
        if "highlight" in page.classes and not any("copybutton.js" in address for address in page.loaded):
            found.append(f"{name}: its code has no copy buttons")
        if "math" in page.classes and not any("mathjax" in address for address in page.loaded):
            found.append(f"{name}: its formulas are not drawn")
    landing = pages[folder / "index.html"]
    if ("pip", "install") not in pairwise(landing.words):
        found.append("index.html: no install line")
    if (cards := landing.classes.count("sd-card")) != 3 or landing.classes.count("sd-stretched-link") != 3:
        found.append(f"index.html: {cards} cards, expected three that are links")
    if repository is not None and not any(address.startswith(repository) for address in landing.links):
        found.append(f"index.html: no link to edit it in {repository}")
    gallery = folder / "auto_gallery"
    if (shown := pages[gallery / "index.html"].classes.count("sphx-glr-thumbcontainer")) != n_examples:
        found.append(f"auto_gallery/index.html: {shown} examples, expected {n_examples}")
    for path in sorted(gallery.glob("plot_*.html")):
        ends = {Path(urlsplit(address).path).suffix for address in pages[path].links}
        if not {".py", ".ipynb"} <= ends or not any("_images" in address for address in pages[path].loaded):
            found.append(f"auto_gallery/{path.name}: no picture, or nothing to download")
    return found


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    n_examples = len(list((ROOT / "docs" / "gallery").glob("plot_*.py")))
    found = faults(Path(sys.argv[1]), n_examples, project.get("urls", {}).get("Repository"))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
