"""Mutants of the package's Python: small faults, one at a time, that some test is to fail for.

    python -P tests/support/mutants.py FOLDER [PATH ...] [--sample N] [--seed SEED] [--seconds S]

Faults are made in bodies of functions below each PATH (by default `kcalib/estimators`, `inference`, `laws` and
`streaming/_files`): other comparisons, operators, constants, conditions and results, calls and sums left out. Messages
and annotations stay as they are. Of all mutants a sample is drawn. Which tests reach a line is found once, by coverage
(`pip install coverage`), and kept in FOLDER. For each mutant a child of the process that has collected the tests takes
the mutated code in place of its functions', and runs those that reach it until one fails, at most so many as take S
seconds. Mutants that were killed are kept, too, while their file is the same: a second run tries the others again. What
was found is printed, and written to FOLDER/report.txt.

Survivors that `equivalent_mutants.txt` lists, by hand, are shown apart: with them results are the same, or as good.
"""

from __future__ import annotations

import argparse
import ast
import collections
import gc
import hashlib
import importlib
import itertools
import json
import os
import resource
import select
import signal
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from scipy.stats import binomtest

ROOT = Path(__file__).parents[2]
PATHS = ["kcalib/estimators", "kcalib/inference", "kcalib/laws", "kcalib/streaming/_files"]
ROOMS = ("estimators", "inference", "laws", "streaming", "evaluation", "input", "solvers", "distributions")
MEMORY = 8 * 2**30  # address space of a child
PAIRS = "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, Add Sub, Mult Div, BitAnd BitOr, And Or, Break Continue"
OTHER = {getattr(ast, a): getattr(ast, b) for pair in PAIRS.split(", ") for a, b in (pair.split(), pair.split()[::-1])}
OTHER |= {ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult}


class Mutant(NamedTuple):
    path: str
    line: int
    lines: tuple[int, ...]  # whose tests are run
    text: str  # of its line, and of the change
    where: tuple[int, int]  # number of the node in the file, and of the change among those of the node


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of a node."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in OTHER:
            yield ast.Compare(node.left, [OTHER[type(operator)]()], node.comparators)
        case ast.BinOp() if type(node.op) in OTHER:
            yield ast.BinOp(node.left, OTHER[type(node.op)](), node.right)
        case ast.BoolOp():
            yield ast.BoolOp(OTHER[type(node.op)](), node.values)
        case ast.UnaryOp():
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield ast.Constant(node.value + 1)
        case ast.Constant(value=float()):
            yield ast.Constant(2 * node.value if node.value else 1.0)
        case ast.If():
            yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield ast.Pass()
        case ast.Break() | ast.Continue():
            yield OTHER[type(node)]()


def inner_nodes(node: ast.AST, inside: bool = False) -> Iterator[ast.AST]:
    """Nodes in bodies of functions, but for messages and what is said of types."""
    match node:
        case ast.FunctionDef():
            for child in node.body if node.name not in ("__repr__", "__str__") else []:
                yield from inner_nodes(child, True)
            return
        case ast.Raise() | ast.JoinedStr() | ast.Call(func=ast.Name(id="warn" | "cast")):
            return
        case ast.AnnAssign():
            children = [node.value] if node.value else []
        case _:
            children = list(ast.iter_child_nodes(node))
    if inside:
        yield node
    for child in children:
        yield from inner_nodes(child, inside)


def mutants_of(path: str, text: str) -> Iterator[Mutant]:
    rows, lines = text.splitlines(), ()
    for number, node in enumerate(inner_nodes(ast.parse(text))):
        if isinstance(node, ast.stmt):
            lines = tuple(range(node.lineno, getattr(node, "body", [node])[0].lineno + 1))
        for number_of_change, change in enumerate(changes(node)):
            before, after = (ast.unparse(one).splitlines()[0] for one in (node, change))
            said = f"{rows[node.lineno - 1].strip()}: {before} -> {after}"
            yield Mutant(path, node.lineno, lines, said, (number, number_of_change))


def name_of(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


class Replacement(ast.NodeTransformer):
    def __init__(self, node: ast.AST, change: ast.AST) -> None:
        self.node, self.change = node, change

    def visit(self, node: ast.AST) -> Any:
        return ast.copy_location(self.change, node) if node is self.node else super().visit(node)


def put_in_place(mutant: Mutant, text: str) -> None:
    """Give the functions of the file that are there the code of the mutated ones."""
    tree = ast.parse(text)
    node = list(inner_nodes(tree))[mutant.where[0]]
    changed = ast.fix_missing_locations(Replacement(node, list(changes(node))[mutant.where[1]]).visit(tree))
    filename = sys.modules[name_of(mutant.path)].__file__
    codes, found = [compile(changed, str(filename), "exec", dont_inherit=True)], {}
    while codes:
        code = codes.pop()
        found[code.co_qualname, code.co_firstlineno] = code
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    gc.unfreeze()  # what `conftest` has frozen is not among objects
    for function in [one for one in gc.get_objects() if isinstance(one, types.FunctionType)]:
        key = function.__code__.co_qualname, function.__code__.co_firstlineno
        if function.__code__.co_filename == filename and key in found:
            function.__code__ = found[key]


def said_by_child(work: Callable[[], str], seconds: float | None) -> str:
    """What some work returns in a child, or how that ended."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        try:
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    if is_late := not select.select([reading], [], [], seconds)[0]:
        os.kill(process, signal.SIGKILL)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(process, 0)
    return said or ("killed: by its time" if is_late else "killed: by its end")


class Run:
    """A plugin of pytest: in place of the tests, the mutants."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.failed, self.seconds = given, "", {}
        files = [path for name in given.paths for path in sorted((ROOT / name).rglob("*.py"))]
        self.texts = {str(path.relative_to(ROOT)): path.read_text() for path in files}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid
        elif report.when == "call" and report.passed:
            self.seconds[report.nodeid] = report.duration

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for path in self.texts:
            importlib.import_module(name_of(path))
        self.items = {item.nodeid: item for item in session.items}
        self.find_tests(self.given.folder / "tests.json")
        mutants = [mutant for path, text in self.texts.items() for mutant in mutants_of(path, text)]
        sample = sorted(Random(self.given.seed).sample(mutants, min(self.given.sample, len(mutants))))
        print(f"{len(mutants)} mutants of {len(self.texts)} files, of which {len(sample)} are tried", flush=True)
        text = report_of(self.outcomes(sample, self.given.folder / "killed.json"))
        (self.given.folder / "report.txt").write_text(text)
        print(text)
        return True

    def run(self, names: list[str]) -> Iterator[str]:
        items = [self.items[name] for name in names]
        for item, following in itertools.zip_longest(items, items[1:]):
            yield item.nodeid
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def find_tests(self, path: Path) -> None:
        """Of each line, the tests that pass and reach it, and of each of them how long it takes."""
        digest = hashlib.sha256(json.dumps(self.texts).encode()).hexdigest()
        state = json.loads(path.read_text()) if path.exists() else {}
        if state.get("of") != digest:
            state = {"of": digest, "seconds": {}, "lines": {name: {} for name in self.texts}}
        if new := [name for name in self.items if name not in state["seconds"]]:
            print(f"{len(new)} tests are run with coverage", flush=True)
            path.write_text(said_by_child(lambda: self.covered(new, state), None))
            state = json.loads(path.read_text())
        self.seconds, self.lines = state["seconds"], state["lines"]

    def covered(self, names: list[str], state: dict[str, Any]) -> str:
        import coverage

        tracer = coverage.Coverage(data_file=None, include=[str(ROOT / path) for path in self.texts])
        tracer.start()
        for name in self.run(names):
            tracer.switch_context(name)
        tracer.stop()
        state["seconds"] |= {name: self.seconds.get(name) for name in names}
        for path, lines in state["lines"].items():
            for line, reached in tracer.get_data().contexts_by_lineno(str(ROOT / path)).items():
                lines[str(line)] = lines.get(str(line), []) + [name for name in reached if name in self.seconds]
        return json.dumps(state)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Quick ones first, and one of each function before its other parameters, up to the time there is."""
        lines = self.lines[mutant.path]
        names = {name for line in mutant.lines for name in lines.get(str(line), ()) if name in self.items}
        names = {name for name in names if "emulated" not in name}  # which compile, and may fail in a child
        rank: collections.Counter[str] = collections.Counter()
        order = []
        for name in sorted(names, key=lambda name: (self.seconds[name], name)):
            order.append((rank[name.partition("[")[0]], self.seconds[name], name))
            rank[name.partition("[")[0]] += 1
        chosen, seconds = [], 0.0
        for _, takes, name in sorted(order):
            if not chosen or seconds + takes <= self.given.seconds:
                chosen.append(name)
                seconds += takes
        return chosen

    def outcomes(self, sample: list[Mutant], path: Path) -> dict[Mutant, str]:
        kept, found = json.loads(path.read_text()) if path.exists() else {}, {}
        for count, mutant in enumerate(sample, 1):
            key = hashlib.sha256(f"{mutant.where} {self.texts[mutant.path]}".encode()).hexdigest()
            if key not in kept:
                seconds = 60 + 10 * self.given.seconds
                found[mutant] = said_by_child(lambda mutant=mutant: self.tried(mutant), seconds)
                if found[mutant].startswith("killed"):
                    kept[key] = found[mutant]
                    path.write_text(json.dumps(kept))
            found[mutant] = kept.get(key, found.get(mutant))
            print(f"{count} {mutant.path}:{mutant.line}: {mutant.text}: {found[mutant]}", flush=True)
        return found

    def tried(self, mutant: Mutant) -> str:
        put_in_place(mutant, self.texts[mutant.path])
        names = self.tests_of(mutant)
        for _ in self.run(names):
            if self.failed:
                break
        return f"killed: {self.failed}" if self.failed else f"survives {len(names)} tests"


def report_of(outcomes: dict[Mutant, str]) -> str:
    listed = (Path(__file__).parent / "equivalent_mutants.txt").read_text().splitlines()
    why = dict(line.rsplit("  # ", 1) for line in listed)
    alive = {f"{mutant.path}: {mutant.text}" for mutant, said in outcomes.items() if said.startswith("survives")}
    n, killed, lines = len(outcomes), len(outcomes) - len(alive), []
    for size, which in ((n, "mutants"), (n - len(alive & set(why)), "mutants that are not equivalent")):
        ends = binomtest(killed, size).proportion_ci(0.95, "exact")
        share = f"{killed / size:.1%} (95 % interval {ends.low:.1%} to {ends.high:.1%})"
        lines.append(f"Tests fail for {killed} of {size} {which}: {share}.")
    lines += ["", "Survivors", *sorted(alive - set(why))]
    lines += ["", "Equivalent", *(f"{text}  # {why[text]}" for text in sorted(alive & set(why)))]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("paths", nargs="*", default=PATHS)
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    given.folder.mkdir(exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.chdir(ROOT)
    tests = [f"tests/{room}" for room in ROOMS]
    sys.exit(pytest.main(["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", *tests], plugins=[Run(given)]))


if __name__ == "__main__":
    main()
