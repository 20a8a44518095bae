"""The code itself: imports point down, one version, files installed."""

from __future__ import annotations

import ast
import graphlib
import os
import re
import subprocess
import sys
import textwrap
import typing
from importlib import resources
from pathlib import Path

import pytest
from layers import layer

import kcalib
from kcalib import _native

ROOT = Path(__file__).parents[1]

MODULES = sorted(
    ".".join(path.relative_to(ROOT / "kcalib").with_suffix("").parts).removesuffix("__init__").rstrip(".")
    for path in (ROOT / "kcalib").rglob("*.py")
)


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "kcalib").with_suffix("").parts).removesuffix("__init__").rstrip(".")


def _imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name.removeprefix("kcalib").lstrip(".") for name in names if name.split(".")[0] == "kcalib"}


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """What each module imports of the others."""
    return {_module(path): _imports(path) & set(MODULES) - {""} for path in (ROOT / "kcalib").rglob("*.py")}


def test_imports_point_down(imports):
    # A package that takes names from its own modules is above them.
    up = [
        f"{module} imports {imported}"
        for module, names in imports.items()
        for imported in names
        if layer(imported) > layer(module) and not (module and imported.startswith(f"{module}."))
    ]
    assert not up


def test_no_import_goes_in_a_circle(imports):
    tuple(graphlib.TopologicalSorter(imports).static_order())


def test_texts_for_gpus_are_installed():
    """Every file of src/cuda, and every header that a `Program` pastes in front of one."""
    listed = (ROOT / "src" / "meson.build").read_text()
    texts = {f"cuda/{path.name}" for path in (ROOT / "src" / "cuda").iterdir()}
    for path in (ROOT / "kcalib").rglob("*.py"):
        texts |= set(re.findall(r'"((?:cuda|include)/[\w./]+)"', path.read_text()))
    for text in texts:
        assert listed.count(f"'{text}'") == 1 or text.endswith("/"), text


def test_only_one_file_knows_array_libraries():
    for path in (ROOT / "kcalib").rglob("*.py"):
        assert ("array_api_compat" in path.read_text()) == (path.name == "arrays.py"), path


def loaded_by(code: str) -> set[str]:
    """Names of the modules that a fresh process has after it has run this."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_import_is_light():
    """The import brings the compiled core; a call the rooms on its way; what few calls need comes when it is used."""
    of_package = {name for name in loaded_by("import kcalib") if name.partition(".")[0] == "kcalib"}
    assert of_package == {"kcalib", "kcalib._native", "kcalib._version"}
    later = {"scipy.special", "array_api_compat.numpy", "matplotlib", "pandas", "numpy.testing", "statistics", "html"}
    rooms = ["evaluation", "inference", "laws", "methods", "recalibration", "regression", "solvers", "streaming"]
    loaded = loaded_by("import kcalib; kcalib.skce([0, 1, 1], [0.2, 0.6, 0.9])")
    assert not (later | {f"kcalib.{room}" for room in rooms}) & loaded


def test_names_are_those_that_type_checkers_see():
    """What is opened later is what `TYPE_CHECKING` imports, and is all that is public; `dir` has it before."""
    tree = ast.parse((ROOT / "kcalib" / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: node.module if node.module != "kcalib" else f"kcalib.{alias.name}"
        for node in block.body
        for alias in node.names
    }
    assert imported == kcalib.OPENED_LATER
    assert {*imported, "__version__"} == set(kcalib.__all__) <= set(dir(kcalib))
    for name in kcalib.__all__:
        assert getattr(kcalib, name) is vars(kcalib)[name]


@pytest.mark.parametrize("name", [name for name in kcalib.__all__ if callable(getattr(kcalib, name))])
def test_annotations_can_be_evaluated(name):
    """As checks of types while a program runs do: the names in them are in the module, not for mypy alone."""
    typing.get_type_hints(getattr(kcalib, name))


@pytest.mark.grid
def test_a_fork_beside_a_first_result_has_results():
    """A child would wait for ever for what another thread was importing within its call."""
    code = """
        import os, signal, sys, threading, time, scipy.special, scipy.stats, kcalib
        class Slow:
            def find_spec(self, name, path=None, target=None):
                time.sleep(0.2 * name.startswith("kcalib"))
        kcalib.skce([0, 1, 1], [0.2, 0.6, 0.9])
        sys.meta_path.insert(0, Slow())
        call = lambda: kcalib.skce.result([0, 1, 1], [0.2, 0.6, 0.9])
        thread = threading.Thread(target=call)
        thread.start()
        time.sleep(0.1)
        if os.fork() == 0:
            signal.alarm(10)
            os._exit(0 if call().value < 0 else 1)
        assert os.wait()[1] == 0
        thread.join()
    """
    command = [sys.executable, "-P", "-W", "ignore", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not done.returncode, done.stderr


@pytest.mark.grid
def test_threads_may_open_rooms_at_once():
    """Each module takes a while to be found, so that threads come to the same ones by different ways; then a fork."""
    code = """
        import os, signal, sys, threading, time, kcalib
        class Slow:
            def find_spec(self, name, path=None, target=None):
                time.sleep(0.001 * name.startswith("kcalib"))
        sys.meta_path.insert(0, Slow())
        names = ["kde_calibration_error", "squared_calibration_error", "regression", "evaluate"]
        barrier, faults = threading.Barrier(len(names)), []
        def opened(name):
            barrier.wait()
            try:
                getattr(kcalib, name)
            except BaseException as fault:
                faults.append(fault)
        threads = [threading.Thread(target=opened, args=(name,)) for name in names]
        [thread.start() for thread in threads]
        time.sleep(0.02)
        if os.fork() == 0:  # while others open rooms
            signal.alarm(30)
            os._exit(0 if kcalib.skce([0, 1, 1], [0.2, 0.6, 0.9]) < 0 else 1)
        assert os.wait()[1] == 0
        [thread.join() for thread in threads]
        assert not faults, faults
    """
    # What rooms bring may have said what it does after a fork when the fork had begun: logging then says so itself.
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert not done.returncode, done.stderr


def test_rooms_do_not_ask_the_package_for_what_it_opens_later():
    """The thread that imports one could wait for another that opens names, and this one for that."""
    for path in (ROOT / "kcalib").rglob("*.py"):
        if path.parent.parent.name == "integrations" or path.parent.name in ("integrations", "_command", "files"):
            continue  # which no room imports
        if path == ROOT / "kcalib" / "__init__.py":
            continue
        text = path.read_text()
        for node in ast.parse(text).body if "from kcalib import" in text else []:
            if isinstance(node, ast.ImportFrom) and node.module == "kcalib":
                assert not {alias.name for alias in node.names} & set(kcalib.OPENED_LATER), path


@pytest.mark.grid
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_any_room_can_be_the_first():
    """In a child of a process that has imported the compiled core alone."""
    names = sorted(set(kcalib.OPENED_LATER.values()))
    code = f"""
        import os, kcalib, numpy
        for name in {names}:
            if os.fork() == 0:
                __import__(name)
                os._exit(0)
            if os.wait()[1]:
                print(name, flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert not done.stdout, done.stderr


@pytest.mark.parametrize(
    ("change", "last"),
    [
        (None, "ImportError: this is the source folder {0}, without the compiled core; install kcalib (`pip install "
         ".`), and start Python in another folder, or with the option -P, to import what is installed"),
        ("no checkout", "ModuleNotFoundError: No module named 'kcalib._native'"),
        ("core that needs more", "ModuleNotFoundError: No module named 'more'"),
    ],
)  # fmt: skip
def test_import_in_a_checkout_says_what_to_do(tmp_path, change, last):
    """In one sentence; every other fault of an installation shows as it is."""
    folder = tmp_path / "kcalib"
    folder.mkdir()
    for name in ("__init__.py", "meson.build"):
        (folder / name).write_bytes((ROOT / "kcalib" / name).read_bytes())
    if change == "no checkout":
        (folder / "meson.build").unlink()
    elif change is not None:
        (folder / "_native.py").write_text("import more")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Without site-packages (-S) no hook of an editable install takes precedence over the folder.
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import kcalib"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    error = done.stderr.splitlines()
    assert error[-1] == last.format(folder) and not any("During handling" in line for line in error)


@pytest.mark.parametrize("path", sorted((ROOT / "asv_benches" / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_benchmarks_ask_for_what_there_is(path):
    """A benchmark that asks for something else is skipped, without a word."""
    for names in re.findall(r"\brequire\(([^)]*)\)", path.read_text()):
        for name in re.findall(r'"([\w.]+)"', names):
            found = kcalib
            for part in name.split("."):
                assert hasattr(found, part), f"{path.name} requires {name}"
                found = getattr(found, part)


def test_one_version():
    assert _native.version == kcalib.__version__
    assert f"version: '{kcalib.__version__}'" in (ROOT / "meson.build").read_text()


def test_everything_is_installed():
    installed = resources.files("kcalib")
    for path in (ROOT / "kcalib").rglob("*"):
        if path.is_file() and path.name != "meson.build" and "__pycache__" not in path.parts:
            assert installed.joinpath(*path.relative_to(ROOT / "kcalib").parts).is_file(), path


def test_everything_is_listed():
    """What `test_everything_is_installed` cannot see where kcalib is imported from its sources."""
    listed = set()
    for folder, names in re.findall(r"'([\w/]*)': \[(.*?)\]", (ROOT / "kcalib" / "meson.build").read_text(), re.DOTALL):
        listed |= {Path(folder, name) for name in re.findall(r"'(\w+\.py)'", names)}
    assert listed == {path.relative_to(ROOT / "kcalib") for path in (ROOT / "kcalib").rglob("*.py")}


def test_metrics_have_the_numbers_of_the_header():
    from kcalib._pairs.backends import cpu

    header = (ROOT / "src/include/kcalib/profiles.h").read_text()
    for name, number in cpu.METRIC_NUMBERS.items():
        assert f"{name.upper()} = {number}" in header


def test_a_profile_is_named_in_the_header_and_in_its_class_alone():
    """Numbers, switches, array forms and properties are made from the rows of profiles.h."""
    from kcalib._pairs.profiles import PROFILES

    header = (ROOT / "src/include/kcalib/profiles.h").read_text()
    public = (ROOT / "kcalib/kernels.py").read_text()
    loops = [f for folder in ("src/cpu", "src/cuda") for f in (ROOT / folder).rglob("*.*")]
    # sorted_line.py has the recurrences of the few profiles that have some, spectra.py the laws of their frequencies,
    # families say whose closed forms they have.
    some = [ROOT / "kcalib/_pairs" / name for name in ("backends/sorted_line.py", "spectra.py")]
    some += (ROOT / "kcalib/_pairs/families").iterdir()
    arrays = [f for f in (ROOT / "kcalib/_pairs").rglob("*.py") if f not in some]
    for number, (name, profile) in enumerate(PROFILES.items()):
        assert profile.number == number and header.count(f"ROW({name},") == 1
        assert public.count(f'"{name}"') == 1
        assert not any(f"Profile::{name}" in f.read_text() for f in loops)
        assert not any(f'"{name}"' in f.read_text() for f in arrays)
        assert profile.positive_definite in ("EVERYWHERE", "ON_A_LINE", "NOWHERE") and profile.slope in ("1", "a")


def test_scripts_name_tests_that_exist():
    """What a script of CI passes to pytest, with braces that bash expands."""
    scripts = [*(ROOT / ".ci").iterdir(), *(ROOT / "tests/support").glob("*.sh"), *(ROOT / ".github").rglob("*.yml")]
    for script in scripts:
        words = re.findall(r"\btests/[\w/.{},]+", script.read_text().replace("\\\n", " "))
        paths = subprocess.run(["bash", "-c", f"echo {' '.join(words)}"], capture_output=True, text=True).stdout.split()
        assert len(paths) >= len(words)
        assert all((ROOT / path.rstrip(".,")).exists() for path in paths), (script, paths)


def test_no_file_needs_fast_math_or_the_build_machine():
    for path in [ROOT / "meson.build", *(ROOT / "src").rglob("*")]:
        if path.is_file() and path.suffix != ".pyc":  # of the command, which a test may just have imported
            code = [line.partition("#")[0].partition("//")[0] for line in path.read_text().splitlines()]
            assert not any("ffast-math" in line or "march=" in line for line in code), path
