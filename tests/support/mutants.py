"""Mutants of the package's Python: small faults, one at a time, that some test is to fail for.

    python -P tests/support/mutants.py FOLDER [PATH ...] [--sample N] [--seed SEED] [--seconds S]

Faults are made in bodies of functions below each PATH (by default `kcalib/estimators`, `inference`, `laws` and
`streaming/_files`): other comparisons, operators, constants, conditions and results, calls and sums left out. Messages
and annotations stay as they are. Of all mutants a sample is drawn. Which tests reach a line is found once, by coverage
(`pip install coverage`), and kept in FOLDER. For each mutant a child of the process that has collected the tests takes
the mutated code in place of its functions', and runs those that reach it until one fails, at most so many as take S
seconds. Mutants that were killed are kept, too, while their file is the same: a second run tries the others again.
"""

from __future__ import annotations

import argparse
import ast
import collections
import gc
import hashlib
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from scipy.stats import binomtest

ROOT = Path(__file__).parents[2]
PATHS = ["kcalib/estimators", "kcalib/inference", "kcalib/laws", "kcalib/streaming/_files"]
ROOMS = ("estimators", "inference", "laws", "streaming", "evaluation", "input", "solvers", "distributions")
MEMORY = 8 * 2**30
OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
TEXTS = ("__repr__", "__str__")


@dataclass(frozen=True)
class Mutant:
    path: str
    line: int
    lines: range
    before: str
    after: str
    where: tuple[int, int]  # of the node among all of the file, and of the change among those of the node

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}: {self.before} -> {self.after}"


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
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()


def inner_nodes(node: ast.AST, inside: bool = False) -> Iterator[ast.AST]:
    """Nodes in bodies of functions, but for messages and what is said of types."""
    match node:
        case ast.FunctionDef():
            if node.name not in TEXTS:
                for child in node.body:
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


def short(node: ast.AST) -> str:
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) <= 90 else text[:87] + "..."


def mutants_of(path: str, text: str) -> Iterator[Mutant]:
    statement = range(0)
    for place, node in enumerate(inner_nodes(ast.parse(text))):
        if isinstance(node, ast.stmt):
            statement = range(node.lineno, getattr(node, "body", [node])[0].lineno + 1)
        for place_of_change, change in enumerate(changes(node)):
            yield Mutant(path, node.lineno, statement, short(node), short(change), (place, place_of_change))


class _Replace(ast.NodeTransformer):
    def __init__(self, node: ast.AST, change: ast.AST) -> None:
        self.node, self.change = node, change

    def visit(self, node: ast.AST) -> Any:
        return ast.copy_location(self.change, node) if node is self.node else super().visit(node)


def put_in_place(mutant: Mutant, text: str) -> None:
    """Give the functions of the file that are there the code of the mutated ones."""
    tree = ast.parse(text)
    node = list(inner_nodes(tree))[mutant.where[0]]
    changed = ast.fix_missing_locations(_Replace(node, list(changes(node))[mutant.where[1]]).visit(tree))
    filename = sys.modules[mutant.path[:-3].replace("/", ".").removesuffix(".__init__")].__file__
    code, found = [compile(changed, str(filename), "exec", dont_inherit=True)], {}
    while code:
        outer = code.pop()
        found[outer.co_qualname, outer.co_firstlineno] = outer
        code += [inner for inner in outer.co_consts if isinstance(inner, types.CodeType)]
    gc.unfreeze()  # what `conftest` has frozen is not among objects
    for function in [one for one in gc.get_objects() if isinstance(one, types.FunctionType)]:
        key = function.__code__.co_qualname, function.__code__.co_firstlineno
        if function.__code__.co_filename == filename and key in found:
            function.__code__ = found[key]


class Run:
    """A plugin of pytest: in place of the tests, the mutants."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.failed, self.passed = given, "", {}
        files = [path for name in given.paths for path in sorted((ROOT / name).rglob("*.py"))]
        self.texts = {str(path.relative_to(ROOT)): path.read_text() for path in files}
        self.map, self.killed = given.folder / "tests.json", given.folder / "killed.json"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid
        elif report.when == "call" and report.passed:
            self.passed[report.nodeid] = report.duration

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for path in self.texts:
            importlib.import_module(path[:-3].replace("/", ".").removesuffix(".__init__"))
        items = {item.nodeid: item for item in session.items}
        self.find_tests(items)
        mutants = [mutant for path, text in self.texts.items() for mutant in mutants_of(path, text)]
        sample = Random(self.given.seed).sample(mutants, min(self.given.sample, len(mutants)))
        print(f"{len(mutants)} mutants of {len(self.texts)} files, of which {len(sample)} are tried", flush=True)
        report(self.outcomes(sorted(sample, key=lambda one: (one.path, one.line)), items))
        return True

    def child(self, work: Any, seconds: float) -> str:
        """What a child that does some work writes; or how it ended."""
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            os.write(writing, work().encode())
            os._exit(0)
        os.close(writing)
        ready = select.select([reading], [], [], seconds)[0]
        if not ready:
            os.kill(process, signal.SIGKILL)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        os.waitpid(process, 0)
        return said or ("killed: by its end" if ready else "killed: by the time it takes")

    def find_tests(self, items: dict[str, pytest.Item]) -> None:
        """Of each line, the tests that reach it, and of each test how long it takes; of tests that pass."""
        state = json.loads(self.map.read_text()) if self.map.exists() else {"seconds": {}, "lines": {}}
        digest = hashlib.sha256(json.dumps(self.texts).encode()).hexdigest()
        if state.get("of") != digest:
            state = {"of": digest, "seconds": {}, "lines": {}}
        new = [item for name, item in items.items() if name not in state["seconds"]]
        if new:
            print(f"{len(new)} tests are run with coverage", flush=True)
            self.map.write_text(self.child(lambda: self.covered(new, state), 7200))
        state = json.loads(self.map.read_text())
        self.seconds, self.lines = state["seconds"], state["lines"]

    def covered(self, items: list[pytest.Item], state: dict[str, Any]) -> str:
        import coverage

        tracer = coverage.Coverage(data_file=None, include=[str(ROOT / path) for path in self.texts])
        tracer.start()
        for item, following in zip(items, [*items[1:], None], strict=True):
            tracer.switch_context(item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            state["seconds"][item.nodeid] = self.passed.get(item.nodeid)
        tracer.stop()
        for path in self.texts:
            lines = state["lines"].setdefault(path, {})
            for line, names in tracer.get_data().contexts_by_lineno(str(ROOT / path)).items():
                lines[str(line)] = lines.get(str(line), []) + [name for name in names if name in self.passed]
        return json.dumps(state)

    def tests_of(self, mutant: Mutant, items: dict[str, pytest.Item]) -> list[pytest.Item]:
        """Quick ones first, and one of each function before its other parameters, up to the time there is."""
        lines = self.lines[mutant.path]
        names = {name for line in mutant.lines for name in lines.get(str(line), ()) if name in items}
        rank: collections.Counter[str] = collections.Counter()
        order = []
        for name in sorted(names, key=lambda name: (self.seconds[name], name)):
            order.append((rank[name.partition("[")[0]], self.seconds[name], name))
            rank[name.partition("[")[0]] += 1
        chosen, seconds = [], 0.0
        for _, takes, name in sorted(order):
            if not chosen or seconds + takes <= self.given.seconds:
                chosen.append(items[name])
                seconds += takes
        return chosen

    def outcomes(self, sample: list[Mutant], items: dict[str, pytest.Item]) -> dict[Mutant, str]:
        kept = json.loads(self.killed.read_text()) if self.killed.exists() else {}
        found = {}
        for count, mutant in enumerate(sample, 1):
            text = self.texts[mutant.path]
            key = f"{mutant.name} {mutant.where} of {hashlib.sha256(text.encode()).hexdigest()[:16]}"
            tests = self.tests_of(mutant, items)
            begin = time.monotonic()
            outcome = kept.get(key) or self.outcome_of(mutant, tests)
            if outcome.startswith("killed"):
                kept[key] = outcome
                self.killed.write_text(json.dumps(kept))
            found[mutant] = outcome
            print(f"{count} {time.monotonic() - begin:.1f} s {mutant.name}: {outcome}", flush=True)
        return found

    def outcome_of(self, mutant: Mutant, tests: list[pytest.Item]) -> str:
        if not tests:
            return "no test"
        return self.child(lambda: self.tried(mutant, tests), 60 + 10 * self.given.seconds)

    def tried(self, mutant: Mutant, tests: list[pytest.Item]) -> str:
        put_in_place(mutant, self.texts[mutant.path])
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return f"killed: {self.failed}"
        return f"survived {len(tests)} tests"


def report(outcomes: dict[Mutant, str]) -> None:
    alive = [mutant for mutant, outcome in outcomes.items() if not outcome.startswith("killed")]
    killed, n = len(outcomes) - len(alive), len(outcomes)
    interval = binomtest(killed, n).proportion_ci(0.95, "exact")
    print(f"\n{killed} of {n} were killed: {killed / n:.1%}, 95 % interval {interval.low:.1%} to {interval.high:.1%}")
    for mutant in alive:
        print(f"{mutant.name}: {outcomes[mutant]}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("paths", nargs="*", default=PATHS)
    parser.add_argument("--sample", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    given.folder.mkdir(exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.chdir(ROOT)
    sys.exit(
        pytest.main(
            ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", *(f"tests/{room}" for room in ROOMS)],
            plugins=[Run(given)],
        )
    )


if __name__ == "__main__":
    main()
