"""What the command reads of a file, before values are checked."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kcalib._command.files import open_file
from kcalib._input.columns import FileError


def read_contents(path, **options):
    """All rows of a file, whose predictions are `y_pred`, or `parameters` of distributions."""
    samples = open_file(str(path), options)
    block, layout = samples.read_unchecked(), samples.layout
    return SimpleNamespace(
        y_true=block.pop("y_true"),
        y_pred=block.get("y_pred"),
        parameters=block,
        family=layout.family,
        from_logits=layout.from_logits,
        classes=None if layout.classes is None else np.asarray(layout.classes),
        description=samples.describe(),
    )


def error_of(path, **options):
    """The message, a line, of reading and checking a file, without its name."""
    with pytest.raises((FileError, TypeError)) as caught:
        open_file(str(path), options).prepare()
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")
