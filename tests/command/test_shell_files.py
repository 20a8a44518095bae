"""Completion and man page: files of docs/shell, which docs/scripts/shell_files.py makes from the parser."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kcalib._command.arguments import parser

SHELL = Path(__file__).parents[2] / "docs" / "shell"
COMMANDS = parser().commands.choices


def options_of(name):
    return {string for action in COMMANDS[name]._actions for string in action.option_strings if string[:2] == "--"}


def options(text):
    return set(re.findall(r"--[a-z][a-z-]*", text))


def bash(*words):
    """What bash offers for the last word."""
    line = " ".join(words)
    script = (
        f"source {SHELL / 'kcalib.bash'}; COMP_WORDS=({line}); [ -n '{words[-1]}' ] || COMP_WORDS+=(''); "
        f'COMP_CWORD={len(words) - 1}; COMP_LINE="{line}"; COMP_POINT={len(line)}; _shtab_kcalib; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return set(subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_choices(tmp_path, monkeypatch):
    (tmp_path / "predictions.npz").touch()
    monkeypatch.chdir(tmp_path)
    assert bash("kcalib", "e") == {"evaluate"}
    for name in COMMANDS:
        assert bash("kcalib", name, "--") == options_of(name)
    assert bash("kcalib", "evaluate", "--norm") == {"--normalize"}
    assert bash("kcalib", "evaluate", "--method", "sp") == {"spectrum"}
    for name, command in COMMANDS.items():
        for action in command._actions:
            if action.choices and action.option_strings:
                option = action.option_strings[-1]
                assert bash("kcalib", name, option, "") == set(map(str, action.choices)), f"{option} of {name}"
    assert bash("kcalib", "evaluate", "pred") == {"predictions.npz"}


@pytest.mark.parametrize("file", ["_kcalib", "kcalib.fish"])
def test_zsh_and_fish_know_every_option(file):
    text = (SHELL / file).read_text()
    for name in COMMANDS:
        for option in options_of(name):
            assert option in text or f"-l {option[2:]}" in text, f"{option} of {name}: run docs/scripts/shell_files.py"


def test_the_man_page_has_every_option_of_every_command():
    text = (SHELL / "kcalib.1").read_text().replace("\\-", "-")
    pieces = re.split(r"^\.SH COMMAND .*'kcalib (\w+)'.*\n", text, flags=re.MULTILINE)
    parts = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    assert set(parts) == set(COMMANDS)
    for name in COMMANDS:
        missing = options_of(name) - {"--help"} - options(parts[name])
        assert not missing, f"{missing} of {name}: run docs/scripts/shell_files.py"
    assert ".SH EXIT STATUS" in text
