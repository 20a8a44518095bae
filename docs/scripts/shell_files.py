"""The man page of the command, and its completion for bash, zsh and fish, from the parser: files of `docs/shell`.

    pip install shtab argparse-manpage
    python docs/scripts/shell_files.py docs/shell

The build installs them (`meson.build`); `tests/command/test_shell_files.py` finds options that they lack.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import shtab
from argparse_manpage.manpage import Manpage

from kcalib._command.arguments import EPILOG, parser
from kcalib._version import __version__

FILES = ("FILE", "STATE", "OUT")  # metavars of arguments that are names of files
COMPLETION = {"bash": "kcalib.bash", "zsh": "_kcalib", "fish": "kcalib.fish"}


def commands(kcalib: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return kcalib.commands.choices  # type: ignore[attr-defined]


def completion(shell: str) -> str:
    kcalib = parser()
    for command in commands(kcalib).values():
        for action in command._actions:
            if action.metavar in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(kcalib, shell).rstrip() + "\n"


def man_page() -> str:
    kcalib = parser()
    kcalib.epilog = None  # beneath, with its lines as they are
    for command in commands(kcalib).values():
        command.epilog = None  # once is enough
        command.usage = f"{command.prog} [OPTIONS] " + " ".join(
            f"{action.metavar}{' ...' if action.nargs == '+' else ''}"
            for action in command._actions
            if not action.option_strings
        )
    data = {"project_name": "kcalib", "prog": "kcalib", "version": __version__, "manual_title": "User Commands"}
    page = Manpage(kcalib, _data=data)
    lines = str(page).splitlines()
    title = next(number for number, line in enumerate(lines) if line.startswith(".TH "))
    lines[title] = f'.TH KCALIB "1" "" "kcalib {__version__}" "User Commands"'
    name = lines.index(".SH NAME") + 1
    lines[name] = r"kcalib \- is a probabilistic model calibrated, and how sure is that?"
    formats, _, codes = EPILOG.partition("exit codes:\n")
    for title, text in (("FILES", formats), ("EXIT STATUS", codes)):
        lines += [f".SH {title}", ".nf", *(verbatim(line) for line in text.rstrip().splitlines()), ".fi"]
    return "\n".join(lines).rstrip() + "\n"


def verbatim(line: str) -> str:
    return line.replace("\\", r"\e").replace("-", r"\-")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "kcalib.1").write_text(man_page())
    for shell, name in COMPLETION.items():
        (folder / name).write_text(completion(shell))
