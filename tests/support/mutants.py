"""Mutation: changes to one line each, of which tests should notice; a random sample of them, with the seed stated.

    pip install coverage libcst mutmut
    python -P tests/support/mutants.py FOLDER --seed 20 --sample 640                               # stopped, it goes on
    python -P tests/support/mutants.py FOLDER --seed 20 --sample 640 --again survived --budget 30  # after new tests

FOLDER keeps which tests execute which line (`map-ROOM.json`, made where there is none), and a line for each mutant
(`mutants.jsonl`). Of a file of tests that has changed the map is to be removed.
The changes are mutmut's, and three more: a negated `if`, a statement left out, None returned. mutmut itself leaves out
decorated functions and what runs at import, and cannot draw a sample; so its runner is not taken.

A process that has collected all tests forks for each mutant, puts the changed code into the functions that there are,
and runs the tests that execute the line, from one test function after the other. What changes at import is imported
anew by another process, which has no kcalib yet.
"""

from __future__ import annotations

import argparse
import ast
import collections
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_arg_removal

SOURCES = ("kcalib/estimators", "kcalib/inference", "kcalib/laws", "kcalib/_input")
ROOMS = ("input", "laws", "estimators", "inference", "evaluation", "doctests", "streaming", "report", "devices")
OTHERS = {  # rooms that are no folder of tests
    "doctests": ["--doctest-modules", "kcalib"],
    "devices": ["tests/estimators/test_device_statistics.py", "tests/inference/test_device_inference.py"],
}
# Other libraries are asked for the same, and kernels of the emulated GPU are compiled for minutes.
KEYWORDS = "not cupy and not emulated and not device and not jax and not dask and not mpi"
QUIET = ("-q", "-p", "no:cacheprovider")
ROOT = Path(__file__).parents[2]
PRELOADED = (
    "numpy scipy.integrate scipy.linalg scipy.optimize scipy.sparse.linalg scipy.special scipy.stats pandas polars"
)
NOT_MUTATED = (cst.Annotation, cst.Decorator, cst.Assert, cst.Import, cst.ImportFrom)


# Which mutants there are


def operator_condition(node: cst.If) -> Iterator[cst.If]:
    test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield node.with_changes(test=cst.UnaryOperation(cst.Not(), test))


def operator_left_out(node: cst.Expr | cst.Raise | cst.AugAssign) -> Iterator[cst.Pass]:
    if not (isinstance(node, cst.Expr) and isinstance(node.value, cst.Ellipsis)):
        yield cst.Pass()


def operator_return(node: cst.Return) -> Iterator[cst.Return]:
    if node.value is not None and not node.value.deep_equals(cst.Name("None")):
        yield node.with_changes(value=None)


OPERATORS: list[tuple[Any, Callable[[Any], Any]]] = [
    *mutation_operators,
    (cst.If, operator_condition),
    (cst.Expr, operator_left_out),
    (cst.Raise, operator_left_out),
    (cst.AugAssign, operator_left_out),
    (cst.Return, operator_return),
]


class Mutable(cst.CSTVisitor):
    """Collects ``(line, first line of the statement, operator, node, changed node)``."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        self.found: list[tuple[int, int, str, cst.CSTNode, cst.CSTNode]] = []
        self.statement = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, NOT_MUTATED) or self.is_text(node) or self.is_of_types(node):
            return False
        line = self.get_metadata(PositionProvider, node).start.line
        if isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            self.statement = line
        for kind, operator in OPERATORS:
            if isinstance(node, kind) and not (operator is operator_arg_removal and self.takes_text(node)):
                for changed in operator(node):
                    self.found.append((line, self.statement, operator.__name__, node, changed))
        return True

    def is_text(self, node: cst.CSTNode) -> bool:
        """Documentation, and sentences in messages."""
        if isinstance(node, cst.Expr) and isinstance(node.value, cst.SimpleString | cst.ConcatenatedString):
            return True
        return isinstance(node, cst.BaseString) and not (isinstance(node, cst.SimpleString) and " " not in node.value)

    def takes_text(self, node: cst.Call) -> bool:
        return any(self.is_text(argument.value) for argument in node.args)

    def is_of_types(self, node: cst.CSTNode) -> bool:
        """What runs for type checkers, names of `__all__`, and calls that say what they refuse by themselves."""
        if isinstance(node, cst.If):
            return isinstance(node.test, cst.Name) and node.test.value == "TYPE_CHECKING"
        if isinstance(node, cst.Assign):
            return isinstance(node.targets[0].target, cst.Name) and node.targets[0].target.value == "__all__"
        return (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Name)
            and node.func.value in ("isinstance", "len", "cast", "TypeVar")
        )


def sample_of(seed: int, size: int) -> Iterator[tuple[dict[str, Any], Callable[[], str]]]:
    """A random sample of lines, and for each an operator that applies to it, and one of its changes.

    Each mutant comes with what makes the changed text of its file.
    """
    modules = [MetadataWrapper(cst.parse_module(path.read_text())) for path in source_paths()]
    lines: dict[tuple[int, int], dict[str, list[Any]]] = {}
    for number, module in enumerate(modules):
        visitor = Mutable()
        module.visit(visitor)
        for line, statement, operator, node, changed in visitor.found:
            lines.setdefault((number, line), {}).setdefault(operator, []).append((statement, node, changed))
    generator = random.Random(seed)
    for number, line in generator.sample(sorted(lines), min(size, len(lines))):
        operators = lines[number, line]
        operator = generator.choice(sorted(operators))
        statement, node, changed = generator.choice(operators[operator])
        module = modules[number].module
        mutant = {
            "name": f"{number}:{line}:{operator}",
            "path": str(source_paths()[number].relative_to(ROOT)),
            "lines": [line, statement],
            "operator": operator,
            "before": module.code_for_node(node).strip(),
            "after": module.code_for_node(changed).strip(),
        }
        yield mutant, lambda module=module, node=node, changed=changed: module.deep_replace(node, changed).code


MUTANT = ("name", "path", "lines", "operator", "before", "after")


def source_paths() -> list[Path]:
    return [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))]


# Which tests execute a line


def arguments(rooms: Sequence[str]) -> list[str]:
    """What pytest is to collect."""
    return [word for room in rooms for word in OTHERS.get(room, [f"tests/{room}"])]


class Contexts:
    """Plugin of pytest: each test is a context of the coverage; the CPU time that it takes."""

    def __init__(self, coverage: Any) -> None:
        self.coverage, self.durations, self.failed = coverage, {}, []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        start = time.process_time()
        result = yield
        self.durations[item.nodeid] = time.process_time() - start
        self.coverage.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def write_map(room: str, path: Path) -> None:
    import coverage

    measured = coverage.Coverage(data_file=None, config_file=False, include=[f"{folder}/*" for folder in SOURCES])
    measured.start()
    contexts = Contexts(measured)
    which = [] if room == "devices" else ["-k", KEYWORDS]
    pytest.main([*QUIET, *which, *arguments([room])], plugins=[contexts])
    measured.stop()
    data = measured.get_data()
    lines = {os.path.relpath(name, ROOT): data.contexts_by_lineno(name) for name in data.measured_files()}
    path.write_text(json.dumps({"lines": lines, "durations": contexts.durations, "failed": contexts.failed}))


class Map:
    """Which tests execute a line, of all rooms."""

    def __init__(self, folder: Path, rooms: list[str]) -> None:
        self.lines: dict[str, dict[int, set[str]]] = collections.defaultdict(lambda: collections.defaultdict(set))
        self.durations: dict[str, float] = {}
        for room in rooms:
            path = folder / f"map-{room}.json"
            if not path.exists():
                subprocess.run([sys.executable, "-P", __file__, str(folder), "--map", room], check=True)
            read = json.loads(path.read_text())
            self.durations |= {name: took for name, took in read["durations"].items() if name not in read["failed"]}
            for source, lines in read["lines"].items():
                for line, tests in lines.items():
                    self.lines[source][int(line)].update(tests)

    def of_lines(self, source: str, lines: list[int]) -> set[str]:
        """Tests of the first of these lines that any executes."""
        found = ({test for test in self.lines[source][line] if test in self.durations} for line in lines)
        return next(filter(None, found), set())

    def chosen(self, path: str, tests: set[str], budget: float) -> list[str]:
        """Tests of the source's own room, up to half of `budget` seconds, then all that take the rest.

        Of each function the fastest case, then the next of each.
        """
        room = f"tests/{Path(path).parts[1].strip('_')}/"
        own = self.cheapest({test for test in tests if test.startswith(room)}, budget / 2)
        return [*own, *self.cheapest(tests.difference(own), budget - self.taking(own))] or sorted(tests)[:1]

    def cheapest(self, tests: set[str], seconds: float) -> list[str]:
        functions: dict[str, list[str]] = {}
        for test in sorted(tests, key=lambda test: (self.durations[test], test)):
            functions.setdefault(test.partition("[")[0], []).append(test)
        in_turn = [test for row in itertools.zip_longest(*functions.values()) for test in row if test is not None]
        sums = itertools.accumulate(self.durations[test] for test in in_turn)
        return [test for test, total in zip(in_turn, sums) if total <= seconds]

    def near(self, mutant: dict[str, Any]) -> set[str]:
        """For what runs at import: tests of its function or class, or of what names a constant."""
        lines, at = self.lines[mutant["path"]], mutant["lines"][0]
        tree = ast.parse((ROOT / mutant["path"]).read_text())
        statement = next(part for part in tree.body if part.lineno <= at <= part.end_lineno)
        if isinstance(statement, ast.Assign):
            names = {name.id for target in statement.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
            naming = {name.lineno for name in ast.walk(tree) if isinstance(name, ast.Name) and name.id in names}
        else:
            naming = range(statement.lineno, statement.end_lineno + 1)
        tests = {test for line in naming if line in lines for test in lines[line] if test in self.durations}
        files = collections.Counter(test.partition("::")[0] for test in tests)
        most = {file for file, _ in files.most_common(3)}  # which have to be imported anew
        return {test for test in tests if test.partition("::")[0] in most}

    def taking(self, tests: list[str]) -> float:
        return sum(self.durations[test] for test in tests)


# Changed code into functions that there are


def functions_in(code: types.CodeType, where: str = "") -> Iterator[tuple[str, types.CodeType]]:
    """Outermost functions of a module or class, by the path of their names; and what runs at import, as ``where:``."""
    seen: collections.Counter[str] = collections.Counter()
    for inner in (constant for constant in code.co_consts if isinstance(constant, types.CodeType)):
        seen[inner.co_name] += 1
        path = f"{where}/{inner.co_name}.{seen[inner.co_name]}"
        if inner.co_flags & inspect.CO_OPTIMIZED:
            yield path, inner
        else:
            yield from functions_in(inner, path)
    yield f"{where}:", code


def meaning(code: types.CodeType, deep: bool) -> Any:
    """What differs between codes that do different things, wherever they are written."""
    inner = [meaning(constant, deep) for constant in code.co_consts if deep and isinstance(constant, types.CodeType)]
    plain = [repr(constant) for constant in code.co_consts if not isinstance(constant, types.CodeType)]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, plain, inner


def changed_functions(path: str, after: str) -> list[tuple[types.CodeType, types.CodeType]] | None:
    """Functions to replace, and by what; None where something differs that runs at import."""
    old, new = (
        dict(functions_in(compile(text, str(ROOT / path), "exec"))) for text in ((ROOT / path).read_text(), after)
    )
    different = [name for name in old if name not in new or meaning(old[name], True) != meaning(new[name], True)]
    at_import = [name for name in old if name.endswith(":") and meaning(old[name], False) != meaning(new[name], False)]
    if at_import or old.keys() != new.keys() or any(old[n].co_freevars != new[n].co_freevars for n in different):
        return None
    return [(old[name], new[name]) for name in different if not name.endswith(":")]


def live_functions() -> dict[tuple[str, str, int], types.FunctionType]:
    found = [item for item in gc.get_objects() if isinstance(item, types.FunctionType)]
    return {place(function.__code__): function for function in found}


def place(code: types.CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


class Changed(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Imports one module from a changed text."""

    def __init__(self, path: str, after: str) -> None:
        super().__init__(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."), str(ROOT / path))
        self.after = after

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        package = self.is_package(self.name)
        return importlib.util.spec_from_loader(name, self, is_package=package) if name == self.name else None

    def get_code(self, name: str) -> types.CodeType:
        return compile(self.after, self.path, "exec")


# Runs


class Stop:
    """Plugin of pytest, in a child: tells the first test that fails, and ends."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.end(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.end(report.nodeid)

    def end(self, text: str) -> None:
        os.write(self.pipe, text.encode())
        os._exit(1)


def in_child(run: Callable[[int], None], seconds: float) -> tuple[str, str]:
    """How a child ends that runs tests: survived, timeout, crashed, killed (by the second), or a mistake of ours."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
            run(writing)
            os._exit(0)
        except BaseException as error:
            os.write(writing, repr(error)[:200].encode())
            os._exit(2)
    os.close(writing)
    deadline = time.monotonic() + 60 + 20 * seconds  # of a machine that others use, too
    while not (ended := os.waitpid(process, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(process, 9)
        time.sleep(0.01)
    with open(reading) as file:
        test = file.read()
    if os.WIFSIGNALED(ended[1]):
        return ("timeout" if os.WTERMSIG(ended[1]) in (9, 24) else "crashed"), ""
    return ("survived", "killed", "error")[os.waitstatus_to_exitcode(ended[1])], test


def fresh(changed: Changed, tests: list[str], pipe: int) -> None:
    """Runs tests where kcalib is not imported yet."""
    sys.meta_path.insert(0, changed)
    doctests = ["--doctest-modules"] * any(test.startswith("kcalib") for test in tests)
    if pytest.main([*QUIET, *doctests, *tests], plugins=[Stop(pipe)]):
        Stop(pipe).end("collection")


class Server:
    """Plugin of pytest: in place of running the tests, forks for each mutant."""

    def __init__(self, runs: Iterator[Any], note: Callable[..., None]) -> None:
        self.runs, self.note = runs, note

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items, functions = {item.nodeid: item for item in session.items}, live_functions()
        gc.freeze()
        for mutant, pairs, tests, seconds in self.runs:

            def run(pipe: int, pairs: Any = pairs, tests: Any = tests) -> None:
                for old, new in pairs:
                    functions[place(old)].__code__ = new
                session.config.pluginmanager.register(Stop(pipe))
                chosen = [items[test] for test in tests if test in items]
                for item, following in zip(chosen, [*chosen[1:], None]):
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

            self.note(mutant, tests, *in_child(run, seconds))
        return True


def ask(folder: Path, options: argparse.Namespace) -> None:
    known = Map(folder, options.rooms)
    path = folder / "mutants.jsonl"
    path.touch()
    results = {line["name"]: line for line in map(json.loads, path.read_text().splitlines())}
    started = time.monotonic()

    def note(mutant: dict[str, Any], tests: list[str], end: str, test: str) -> None:
        line = mutant | {"end": end, "by": test, "tests": len(tests), "at": round(time.monotonic() - started, 1)}
        results[mutant["name"]] = line
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    collected, imported, names = [], [], []
    for mutant, code in sample_of(options.seed, options.sample):
        names.append(mutant["name"])
        before = results.get(mutant["name"], {"end": ""})
        if before["end"] not in ("", *options.again) and all(before[field] == mutant[field] for field in MUTANT):
            continue  # of the code that there is now
        try:
            pairs = changed_functions(mutant["path"], after := code())
        except SyntaxError:
            note(mutant, [], "no code", "")
            continue
        tests = known.of_lines(mutant["path"], mutant["lines"]) if pairs else known.near(mutant)
        chosen = known.chosen(mutant["path"], tests, options.budget)
        seconds = 5 + 5 * known.taking(chosen)
        if pairs == []:
            note(mutant, [], "no code", "")
        elif not chosen:
            note(mutant, [], "survived", "")
        elif pairs is None:
            imported.append((mutant, after, chosen, seconds + 10))
        else:
            collected.append((mutant, pairs, chosen, seconds))
    if options.kind != "functions":
        for module in PRELOADED.split():
            importlib.import_module(module)
        for mutant, after, tests, seconds in imported:
            changed = Changed(mutant["path"], after)
            note(mutant, tests, *in_child(lambda pipe, c=changed, t=tests: fresh(c, t, pipe), seconds))
    if options.kind != "imports":

        def runs() -> Iterator[Any]:
            yield from collected
            killers = {result["by"] for result in results.values()} & known.durations.keys()
            yield {**dict.fromkeys(MUTANT, ""), "name": "control"}, [], sorted(killers), 1e4  # do they pass otherwise?

        results.pop("control", None)  # of an earlier call
        pytest.main([*QUIET, *arguments(options.rooms)], plugins=[Server(runs(), note)])
        control = results.get("control", {"end": "error", "by": "no test could be collected"})
        if control["end"] != "survived":
            print(f"without any change: {control['end']}, {control['by']}; what this killed is not killed")
    show([results[name] for name in names if name in results])


def show(results: list[dict[str, Any]]) -> None:
    for folder in (*SOURCES, ""):
        ends = collections.Counter(result["end"] for result in results if result["path"].startswith(folder))
        for end in ("no code", "error"):  # no mutants, and no answer
            ends.pop(end, None)
        total = sum(ends.values())
        share = 1 - ends["survived"] / max(total, 1)
        print(f"{folder or 'all':20} {total:5} mutants, {share:.1%} killed  {dict(ends)}")
    for result in results:
        if result["end"] == "error":
            print(f"\n{result['name']} has no answer: {result['by']}")
        if result["end"] == "survived":
            print(f"\n{result['path']}:{result['lines'][0]} {result['operator']} ({result['tests']} tests)")
            print(f"  - {result['before']}\n  + {result['after']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--sample", type=int, default=600, help="lines, one mutant each")
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="of tests")
    parser.add_argument("--budget", type=float, default=8, help="seconds of tests for a mutant")
    parser.add_argument("--again", nargs="+", default=(), help="ends to ask for again, as `survived`")
    parser.add_argument("--kind", choices=("functions", "imports"), help="only what is in functions, or runs at import")
    parser.add_argument("--map", metavar="ROOM", help="only write which tests of a room execute which lines")
    options = parser.parse_args()
    os.chdir(ROOT)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.map:
        write_map(options.map, options.folder / f"map-{options.map}.json")
    else:
        ask(options.folder, options)


if __name__ == "__main__":
    main()
