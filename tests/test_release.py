"""What a release rests on: workflows that call scripts which are there, versions that agree, recipes, the README."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kcalib

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = sorted(path for path in (ROOT / ".ci").iterdir() if path.suffix != ".py")
PYTHONS = [found[1] for one in PYPROJECT["project"]["classifiers"] if (found := re.search(r"Python :: (3\.\d+)$", one))]


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)  # type: ignore[call-overload]


def test_workflows_pin_what_is_not_ours():
    """By the hash of a commit, with its version beside it; and ours by a file that is there."""
    assert {path.name for path in WORKFLOWS} == {"nightly.yml", "publish.yml", "tests.yml", "wheels.yml"}
    for path in WORKFLOWS:
        used = re.findall(r"uses: (.*)", path.read_text())
        assert used, path
        for one in used:
            if one.startswith("$/"):
                assert (ROOT / one.removeprefix("$/")).is_file(), one
            else:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one), one


def test_an_action_has_one_version():
    texts = "".join(path.read_text() for path in WORKFLOWS)
    used = set(re.findall(r"uses: ([\w-]+/[\w-]+)@(\w+)", texts))
    assert len(used) == len(dict(used)), used


def test_steps_of_workflows_are_scripts_of_the_repository():
    """Which anybody can run, or the installation of what a script needs."""
    for path in WORKFLOWS:
        for command in re.findall(r" run: (.*)", path.read_text()):
            if not command.startswith("python3 -m pip install "):
                script = ROOT / command.split()[0]
                assert script.is_file() and os.access(script, os.X_OK), command


def test_ci_runs_what_the_workflows_run():
    everything = (ROOT / ".ci" / "run").read_text()
    called = set(re.findall(r" run: (\S+)", "".join(path.read_text() for path in WORKFLOWS)))
    for script in called - {".ci/run", ".ci/version", "python3"}:
        assert re.search(rf"^[^#\n]*{re.escape(script)}( |$)", everything, re.MULTILINE), script


def test_checkouts_have_the_commits_that_the_history_of_speed_names():
    for path in WORKFLOWS:
        for job in re.split(r"\n(?=  [\w-]+:\n    name)", path.read_text()):
            assert ("fetch-depth: 0" in job) == bool(re.search(r"run: \.ci/(docs|run)\b", job)), (path.name, job)
    assert '"branches": ["HEAD"],' in (ROOT / "asv_benches" / "history.conf.json").read_text()


def test_versions_of_python_agree():
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    assert sorted(set(re.findall(r'python: "(3\.\d+)", versions: newest', text))) == sorted(PYTHONS)
    assert re.findall(r'python: "(3\.\d+)", versions: oldest', text) == PYTHONS[:1]
    assert PYPROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    assert f"limited_api: '{PYTHONS[0]}'" in (ROOT / "src" / "meson.build").read_text()
    oldest = PYTHONS[0].replace(".", "")
    newest = PYTHONS[-1].replace(".", "")
    assert PYPROJECT["tool"]["cibuildwheel"]["build"] == [f"cp{oldest}-*", f"cp{newest}t-*"]


def test_lower_bounds_are_those_of_pyproject():
    printed = run(sys.executable, "-P", ROOT / ".ci" / "lower_bounds.py", check=True).stdout.splitlines()
    assert [one.replace("==", ">=") for one in printed[:4]] == PYPROJECT["project"]["dependencies"]
    assert {one.split("==")[0] for one in printed[4:]} == {"scikit-learn", "pandas", "matplotlib", "pyarrow"}


CARD = '<div class="sd-card"><a class="sd-stretched-link" href="auto_gallery/index.html"></a></div>'
THUMB = '<div class="sphx-glr-thumbcontainer"><a href="plot_a.html"></a></div>'
EXAMPLE = '<img src="../_images/a.png"><a href="../d/plot_a.py"></a><a href="../d/plot_a.ipynb"></a>'


@pytest.mark.parametrize(
    "page, before, after, fault",
    [
        (None, "", "", None),
        ("index.html", "pip", "pipe", "index.html: no install line"),
        ("index.html", CARD * 3, CARD * 2, "index.html: 2 cards"),
        ("index.html", '<script src="copybutton.js"></script>', "", "index.html: its code has no copy buttons"),
        ("index.html", "<main>", '<main><a href="gone.html#a">', "index.html: gone.html#a leads nowhere"),
        ("index.html", "<main>", '<main><a href="history/index.html">', None),  # comes later
        ("index.html", "<main>", '<main><b class="math">', "index.html: its formulas are not drawn"),
        ("index.html", "<main>", '<main><img src="https://cdn.org/a.js">', "index.html: loads https://cdn.org/a.js"),
        ("index.html", "<main>", '<main><a href="https://elsewhere.org">', None),
        ("index.html", "https://r.org/edit", "https://other.org", "index.html: no link to edit it in https://r.org"),
        ("auto_gallery/index.html", THUMB, "", "auto_gallery/index.html: 0 examples, expected 1"),
        ("auto_gallery/plot_a.html", "_images", "_static", "auto_gallery/plot_a.html: no picture, or nothing"),
        ("auto_gallery/plot_a.html", ".ipynb", ".py", "auto_gallery/plot_a.html: no picture, or nothing"),
    ],
)
def test_the_site_is_looked_at_when_it_is_built(tmp_path, page, before, after, fault):
    head = '<script src="{}copybutton.js"></script><div class="highlight">$ <b>pip</b> install</div>'
    pages = {
        "index.html": head.format("") + "<main>" + CARD * 3 + '<a href="https://r.org/edit/index.rst"></a>',
        "auto_gallery/index.html": THUMB,
        "auto_gallery/plot_a.html": EXAMPLE,
        **dict.fromkeys(["copybutton.js", "_images/a.png", "_static/a.png", "d/plot_a.py", "d/plot_a.ipynb"], ""),
    }
    if page is not None:
        assert before in pages[page]
        pages[page] = pages[page].replace(before, after)
    for name, text in pages.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = runpy.run_path(str(ROOT / ".ci" / "check_site.py"))["faults"](tmp_path, 1, "https://r.org")
    assert found == [] if fault is None else len(found) == 1 and found[0].startswith(fault), found


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_programs(script):
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/usr/bin/env bash\n# ")
    assert run("bash", "-n", script).stderr == ""


def test_scripts_say_what_they_take(tmp_path):
    wrong = [("tests", ["other"]), ("docs", ["folder", "other"]), ("wheels", ["here"]), ("wheels", ["other", "folder"])]
    alone = [(script, []) for script in ("tests", "docs", "site", "wheels", "recipes", "version")]
    for script, arguments in [*wrong, *alone]:
        ended = run(ROOT / ".ci" / script, *arguments, env={"PATH": os.environ["PATH"], "PYTHON": "false"})
        assert ended.returncode == 2 and ended.stderr.startswith(f"usage: .ci/{script} "), ended


def test_a_tag_is_compared_with_the_version(tmp_path):
    """In a copy whose changelog has a date, and in one where each file in turn says something else."""
    files = ("kcalib/_version.py", "meson.build", "CITATION.cff", "CHANGELOG.md", ".ci/version")
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / ".ci" / "version").chmod(0o755)
    version = kcalib.__version__
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(re.sub(r"^(## \[.*\]) - .*", r"\1 - 2026-12-01", changelog.read_text(), count=1, flags=re.M))
    assert run(tmp_path / ".ci" / "version", f"v{version}").stderr == ""
    assert run(tmp_path / ".ci" / "version", version).stderr == f"a tag begins with v: v{version}\n"
    for name in files[:-1]:
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace(version, "8.8.8"))
        ended = run(tmp_path / ".ci" / "version", f"v{version}")
        assert ended.returncode == 1 and re.fullmatch(f"{name} (does not say|has no line): .*\n", ended.stderr), ended
        (tmp_path / name).write_text(text)


def test_recipes_of_a_release(tmp_path):
    sdist = tmp_path / "kcalib-1.2.3.tar.gz"
    sdist.write_bytes(b"an archive")
    run(ROOT / ".ci" / "recipes", sdist, tmp_path / "recipes", check=True)
    conda = (tmp_path / "recipes" / "recipe.yaml").read_text()
    spack = (tmp_path / "recipes" / "package.py").read_text()
    compile(spack, "package.py", "exec")
    for text in (conda, spack):
        assert hashlib.sha256(b"an archive").hexdigest() in text and "1.2.3" in text and "@" + "VERSION" not in text
    for requirement in [*PYPROJECT["project"]["dependencies"], *PYPROJECT["build-system"]["requires"]]:
        name, bound = requirement.split(">=")
        assert f"- {name} >={bound}\n" in conda, requirement
        assert re.search(rf'"py-{name}@{bound.removesuffix(".0")}:"', spack), requirement


def test_no_page_makes_up_an_address():
    """pyproject.toml alone says where the repository is, once it is somewhere."""
    address = PYPROJECT["project"].get("urls", {}).get("Repository", "no address yet")
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*.cff"), *(ROOT / ".github").rglob("*.md"), *(ROOT / "docs").rglob("*.in")]
    assert len(pages) >= 7
    for path in [*pages, *(ROOT / "docs").glob("*.rst")]:
        for found in re.findall(r"https?://[^\s)>`\"]*kcalib[^\s)>`\"]*", path.read_text()):
            if "pypi.org" in found:  # where releases go
                continue
            assert found.startswith(address), (path, found)


def test_links_to_pages_of_others_are_not_looked_for_among_the_sources():
    """By `.ci/docs FOLDER links`: what is no file of the documentation comes beside its pages."""
    ignored = re.findall(
        r'r"(.*?)"', re.search(r"linkcheck_ignore = \[(.*)\]", (ROOT / "docs" / "conf.py").read_text())[1]
    )
    for path in (ROOT / "docs").rglob("*.rst"):
        for found in re.findall(r"<([\w./-]+\.html(?:#[^>]*)?)>`_", path.read_text()):
            assert any(re.match(one, found) for one in ignored), (path, found)


def test_the_readme_is_short_and_its_badges_are_true():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 80
    said = dict(re.findall(r"!\[(\w+): ([^\]]*)\]\(docs/_static/badges/\w+\.svg\)", readme))
    assert said == {
        "Python": f"{PYTHONS[0]} to {PYTHONS[-1]}, {PYTHONS[-1]}t",
        "licence": PYPROJECT["project"]["license"],
        "types": "mypy strict",
    }
    assert PYPROJECT["tool"]["mypy"]["strict"] is True


def test_each_point_of_the_history_of_speed_was_measured():
    folder = ROOT / "asv_benches" / "history"
    commits = (folder / "commits.txt").read_text().split()
    assert len(commits) >= 6
    machines = [file.parent for file in folder.glob("*/machine.json")]
    found = [sorted(machine.glob(f"{commit[:8]}-*.json")) for machine in machines for commit in commits]
    assert all(found)
    for (file,) in found:
        results = json.loads(file.read_text())["results"]
        assert any(value is not None and value > 0 for value in results["bench_skce.Skce.time_skce"][0])


def test_pages_of_the_history_of_speed_show_each_of_its_points():
    """asv draws commits that follow one another as first parents, and all that benchmarks.json lists."""
    folder = ROOT / "asv_benches" / "history"
    listed = json.loads((folder / "benchmarks.json").read_text())
    found = [json.loads(file.read_text())["results"] for file in folder.glob("*/*-*.json")]
    assert set(listed) - {"version"} == set().union(*found)
    commits = (folder / "commits.txt").read_text().split()
    line = run("git", "-C", ROOT, "rev-list", "--first-parent", commits[-1]).stdout.split()
    if not line or run("git", "-C", ROOT, "rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("needs all commits of the repository")
    assert set(commits) <= set(line)


def test_the_site_lists_its_versions_newest_first(tmp_path):
    for version in ("0.9.1", "dev", "0.10.0"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "index.html").write_text("")
        (tmp_path / version / "llms.txt").write_text("[Tutorial](tutorial.html)")
    list_versions = runpy.run_path(str(ROOT / ".ci" / "list_versions.py"))["list_versions"]
    assert list_versions(tmp_path) == ["0.10.0", "0.9.1", "dev"]
    assert (tmp_path / "versions.js").read_text() == 'const kcalibVersions = ["0.10.0", "0.9.1", "dev"];\n'
    assert 'url=0.10.0/"' in (tmp_path / "index.html").read_text()
    assert (tmp_path / "llms.txt").read_text() == "[Tutorial](0.10.0/tutorial.html)"


def test_pages_of_the_text_for_language_models_are_there():
    addresses = re.findall(r"\]\(([^)]*)\.html\)", (ROOT / "docs" / "llms.txt").read_text())
    generated = {"auto_gallery/index"}
    assert len(addresses) > 15
    assert [a for a in addresses if a not in generated and not (ROOT / "docs" / f"{a}.rst").exists()] == []
