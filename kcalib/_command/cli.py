"""The command `kcalib`.

`main` parses the arguments (`arguments`) and calls the module of the subcommand. That reads files (`files`, `jobs`) and
prints a table (`tables`), JSON or CSV (`machine`). A user's mistake ends in one line on standard error, never in a
traceback. `arguments.EXIT_CODES` lists the exit codes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kcalib._command.streams import BAD_INPUT, INTERRUPTED, SAVED, USAGE, report, show_progress, write


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    show_progress("kcalib is being loaded")  # imports take nearly a second
    from kcalib._backend.files import FileBusyError, printable
    from kcalib._command.apply import run_apply
    from kcalib._command.arguments import parser
    from kcalib._command.compare import run_compare
    from kcalib._command.evaluate import run_demo, run_evaluate
    from kcalib._command.history import run_history
    from kcalib._command.report import run_report
    from kcalib._command.states import run_merge, run_show, run_update
    from kcalib.streaming import RunStopped

    commands = {"evaluate": run_evaluate, "compare": run_compare, "demo": run_demo, "report": run_report}
    commands |= {"apply": run_apply, "update": run_update, "merge": run_merge, "show": run_show, "history": run_history}
    show_progress()
    try:
        arguments = parser().parse_args(argv)
        arguments.command_line = list(sys.argv[1:] if argv is None else argv)
        code = commands[arguments.command](arguments)
    except SystemExit as stop:  # --help, --version and usage errors
        code = stop.code if isinstance(stop.code, int) else USAGE
    except RunStopped as stop:
        outcome = f"stopped by {stop.signal.name}: the rows before {stop.row} are in {printable(str(stop.checkpoint))}"
        report(f"{outcome}; continue by the same command with --resume")
        code = SAVED
    except FileBusyError as error:
        report(f"{error.filename} {error.strerror}")
        code = SAVED
    except KeyboardInterrupt:
        report("interrupted")
        code = INTERRUPTED
    return code if write("") else max(code, BAD_INPUT)
