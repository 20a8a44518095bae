"""`Saved`: files, bytes, pickling and equality of states."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np

from kcalib._backend.files import printable
from kcalib.streaming._files.format import Content, pack_content, read, unpack, write


class Saved(ABC):
    """A state that consists of options and named arrays; equal states have equal bytes."""

    _kind: ClassVar[str]  # its name in files

    @abstractmethod
    def _content(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return options and arrays of fixed dtypes in a canonical form: equal for equal states."""

    @classmethod
    @abstractmethod
    def _from_content(cls, options: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        """Return the state of a content; unknown names are skipped."""

    @abstractmethod
    def copy(self) -> Self:
        """Return a copy."""

    def __radd__(self, other: object) -> Self:
        return self.copy() if isinstance(other, int) and other == 0 else NotImplemented  # `sum` begins with 0

    def to_bytes(self) -> bytes:
        """Return the content of the file that `save` writes.

        Returns
        -------
        bytes
            Equal for equal states.

        Raises
        ------
        TypeError
            If the kernel or the lens is of a class of your own, which cannot be written.
        """
        return pack_content(Content(self._kind, *self._content()))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the state in the result of `to_bytes`.

        Parameters
        ----------
        data : bytes
            Bytes from this or an earlier version of kcalib.

        Returns
        -------
        state
            Equal to the original one.

        Raises
        ------
        TypeError
            If `data` is not bytes.
        ValueError
            If `data` is not a state, truncated, damaged, of a later format, or of another kind of state.
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"`data` is a {type(data).__name__}, expected bytes")
        return cls._of_content(unpack(bytes(data), "`data`"), "`data`")

    def save(self, path: Any) -> None:
        """Write the state to a file, as a whole or not at all.

        Parameters
        ----------
        path : str or path-like
            Name of the file. An existing file is replaced in one step after the new one is on disk: if the process is
            killed or the power fails, either the old or the new file is there.

        Raises
        ------
        OSError
            If it cannot be written, for example on a full disk; an existing file is kept.
        TypeError
            As `to_bytes`.
        ValueError
            If `path` is a folder.
        """
        write(path, self.to_bytes())

    @classmethod
    def load(cls, path: Any) -> Self:
        """Read a file that `save` has written.

        Parameters
        ----------
        path : str or path-like
            Name of the file.

        Returns
        -------
        state
            Equal to the state that was saved.

        Raises
        ------
        OSError
            If the file cannot be read.
        ValueError
            If it is a folder, empty, truncated, damaged, not written by kcalib, of a later format, or of another kind
            of state.
        """
        name = printable(os.fspath(path))
        return cls._of_content(unpack(read(path), name), name)

    @classmethod
    def _of_content(cls, content: Content, name: str) -> Self:
        """Return the state of a content; messages call its origin `name`."""
        if content.kind != cls._kind:
            raise ValueError(
                f"{name} holds a state of the kind {content.kind!r}, expected {cls._kind!r}; use kcalib.streaming.load"
            )
        try:
            return cls._from_content(content.options, content.arrays)
        except (KeyError, TypeError, ValueError) as error:
            fault = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{name} is not as kcalib writes a state: {fault}") from None

    def __reduce__(self) -> Any:
        return type(self).from_bytes, (self.to_bytes(),)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, Saved)
        return self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]  # a state changes
