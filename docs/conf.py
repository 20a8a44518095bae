"""Sphinx configuration: `sphinx-build -W --keep-going -n -b html docs docs/_build/html`.

Nothing is fetched while building. Needs an installed kcalib with the extra `docs`.
"""

from __future__ import annotations

import dataclasses
import sys
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst.states import RSTState
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

import kcalib
from kcalib._command.arguments import parser
from kcalib._input import columns, parameters
from kcalib._pairs import dispatch

sys.path.insert(0, str(Path(__file__).parent / "scripts"))
import speed_summary

project = "kcalib"
author = "the kcalib developers"
copyright = "2026, the kcalib developers"
version = release = kcalib.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # formulas without another site
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "numpydoc",
]
exclude_patterns = ["_build", "scripts", "gallery"]
# The prompts of examples are not copied.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": "plot_",
    "abort_on_example_error": True,
    "show_memory": False,
    "write_computation_times": False,  # its pages would ask other hosts
    "download_all_examples": False,
    "plot_gallery": "True",
}
templates_path = ["_templates"]
html_theme = "furo"
html_title = f"kcalib {release}"
html_static_path = ["_static"]
html_css_files = ["kcalib.css"]
html_js_files = ["versions.js"]
html_extra_path = ["llms.txt"]
# "Edit this page" links to the repository that pyproject.toml names; without one there is no such link.
_project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
html_theme_options: dict[str, Any] = {}
if (repository := _project.get("urls", {}).get("Repository")) is not None:
    html_theme_options = {"source_repository": repository, "source_branch": "main", "source_directory": "docs/"}
pygments_style = "friendly"

# `skce` and `Exponential` in docstrings are links; the names of parameters are not.
default_role = "py:obj"
nitpick_ignore_regex = [("py:obj", r"[a-z_]+(\(\))?"), ("py:obj", r"sklearn\..*")]

linkcheck_ignore = [r"history/index\.html"]  # of pages that `.ci/docs` puts beside these
autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"
# Hosts of kcalib.integrations.
autodoc_mock_imports = ["torch", "torchmetrics", "mlflow", "evaluate", "datasets", "lm_eval", "evidently"]
autodoc_default_options = {"undoc-members": True}

# Every docstring that the API pages show has to pass these. Not among them: PR03 and PR04, because
# shared parameters are documented together ("As in `kcalib.skce`"), and SA02.
numpydoc_show_class_members = False
numpydoc_validation_checks = {
    *("GL01", "GL02", "GL03", "GL05", "GL06", "GL07", "GL09", "GL10"),  # layout and sections
    *("SS01", "SS02", "SS03", "SS04", "SS06"),  # the summary: one line, a sentence
    *("PR01", "PR02", "PR05", "PR06", "PR07", "PR08", "PR09", "PR10"),  # parameters
    *("RT02", "RT03", "RT04", "RT05"),  # returns
    *("SA03", "SA04"),  # see also
}
# Result classes document their fields by comments, not as parameters.
RESULTS = (
    "CalibrationTestResult", "Comparison", "ConfidenceInterval", "Evaluation", "MedianDistance", "ModelDifference",
    "ModelValue", "SKCEResult", "UCMEResult", "CKCEResult", "KDEResult", "ECEResult", "ReliabilityBins", "MMCEResult",
    "ReliabilityDiagram", "Band", "BrierDecomposition", "Solution", "LowRank", "SymmetricOperator", "KernelOperator",
    "Kronecker", "KroneckerSolution",
    "SquaredCalibrationErrorResult", "EstimatorRisk", "QuantileCalibration", "QuantileScores", "ForecastEvaluation",
    "FewErrors", "GroupCalibration", "WorstGroups", "RunStopped", "Score", "Scores", "Choice",
    "MultilabelEvaluation", "ModelForecasts", "LogisticRecalibration", "ObservedExpectedRatio", "GoodnessOfFit",
    "CalibrationCurve", "CumulativeCalibrationError",
)  # fmt: skip
# What methods do is called by the functions that take them, not by users.
CALLED_INSIDE = r"^kcalib\.methods\.\w+\.\w+"
# Their signatures are not known without their hosts.
OF_HOSTS = (r"evidently\.Calibration$", r"torchmetrics\.Reliability$")
EXCLUDED = (r"\._", *OF_HOSTS, CALLED_INSIDE)
numpydoc_validation_exclude = {*EXCLUDED, *(rf"\.{name}(\.|$)" for name in RESULTS)}


def names(values: tuple[str, ...]) -> str:
    return ", ".join(f"``{value}``" for value in values)


# The names that `kcalib evaluate` recognises in files, for user_guide/inputs.rst and scores.rst.
rst_epilog = f"""
.. |probability_names| replace:: {names(columns.PROBABILITY_NAMES)}
.. |logit_names| replace:: {names(columns.LOGIT_NAMES)}
.. |label_names| replace:: {names(columns.LABEL_NAMES)}
.. |mean_names| replace:: {names(parameters.MEAN_NAMES)}
.. |std_names| replace:: {names(parameters.STD_NAMES)}
.. |samples_names| replace:: {names(parameters.SAMPLES_NAMES)}
.. |rate_names| replace:: {names(parameters.RATE_NAMES)}
"""


class CapabilityTable(SphinxDirective):
    """`kcalib._pairs.dispatch.TABLE`, a column for each backend and a row for each field."""

    state: RSTState

    def run(self) -> list[nodes.Node]:
        rows = [["", *(f"``{row.name}``" for row in dispatch.TABLE)]]
        for field in dataclasses.fields(dispatch.Capability):
            if field.name != "name":
                cells = [self.text(getattr(row.capability, field.name)) for row in dispatch.TABLE]
                rows.append([field.name, *cells])
        reductions = [tuple(one.__name__ for one in row.backend.reductions) for row in dispatch.TABLE]
        rows.append(["reductions", *map(self.text, reductions)])
        lines = [".. list-table::", "   :header-rows: 1", "   :stub-columns: 1", ""]
        for row in rows:
            lines += [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate(row)]
        parent = nodes.Element()
        self.state.nested_parse(StringList(lines, source="kcalib._pairs.dispatch.TABLE"), self.content_offset, parent)
        return parent.children

    @staticmethod
    def text(value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        return names(value) if isinstance(value, tuple) else str(value)


class SpeedSummary(SphinxDirective):
    """Rows of docs/performance_table.txt in words (docs/scripts/speed_summary.py), and where they were measured."""

    state: RSTState

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(speed_summary.TABLE))
        table = speed_summary.read(speed_summary.TABLE.read_text())
        lines = [".. list-table::", ""]
        for what, value in speed_summary.summary(table):
            lines += [f"   * - {what}", f"     - {value}"]
        lines += [
            "",
            f"With {speed_summary.THREADS}, all in one run on: {table.cpu}. :doc:`The whole table <performance>`.",
        ]
        parent = nodes.Element()
        self.state.nested_parse(StringList(lines, source=str(speed_summary.TABLE)), self.content_offset, parent)
        return parent.children


class CommandOptions(SphinxDirective):
    """Print ``--help-all`` of every subcommand, without the file formats and exit codes that the page has."""

    def run(self) -> list[nodes.Node]:
        parts: list[nodes.Node] = []
        for name, command in parser().commands.choices.items():
            command.shows_all, command.details = True, None
            text = command.format_help().strip()
            parts += [nodes.rubric(text=f"kcalib {name}"), nodes.literal_block(text, text, language="none")]
        return parts


def hide_signature(app: Any, what: str, name: str, *_: Any) -> tuple[str, None] | None:
    """Results and backends are not constructed by users."""
    return ("", None) if what == "class" and name.rpartition(".")[2] in (*RESULTS, "Backend") else None


def setup(app: Any) -> None:
    app.add_directive("capability-table", CapabilityTable)
    app.add_directive("speed-summary", SpeedSummary)
    app.add_directive("command-options", CommandOptions)
    app.connect("autodoc-process-signature", hide_signature)
