"""What all states have in common as files: `save`, `load`, bytes, pickling, equality."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np

from kcalib._backend.files import printable
from kcalib.streaming._files.format import Content, pack_content, read, unpack, write


class Saved(ABC):
    """A state that is options and named arrays; equal states have equal bytes."""

    _kind: ClassVar[str]  # what the file calls it

    @abstractmethod
    def _content(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Options, and arrays of fixed dtypes: canonical, so that equal states have equal ones."""

    @classmethod
    @abstractmethod
    def _from_content(cls, options: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        """The state of these; names that it does not know are skipped."""

    @abstractmethod
    def copy(self) -> Self:
        """Another state with the same rows."""

    def __radd__(self, other: object) -> Self:
        return self.copy() if isinstance(other, int) and other == 0 else NotImplemented  # `sum` begins with 0

    def to_bytes(self) -> bytes:
        """What `save` writes.

        Returns
        -------
        bytes
            Equal states have equal ones.

        Raises
        ------
        TypeError
            If the kernel or the lens is of a class of your own: what it is cannot be written.
        """
        return pack_content(Content(self._kind, *self._content()))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The state that `to_bytes` has turned into these.

        Parameters
        ----------
        data : bytes
            Of any version of kcalib that is not later than this one.

        Returns
        -------
        state
            Equal to the one that was written.

        Raises
        ------
        TypeError
            If `data` holds no bytes.
        ValueError
            If they are none of a state, truncated, damaged, of a later format, or of another kind of state.
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"`data` is a {type(data).__name__}, expected bytes")
        return cls._of_content(unpack(bytes(data), "`data`"), "`data`")

    def save(self, path: Any) -> None:
        """Write the state to a file, whole or not at all.

        Parameters
        ----------
        path : str or path-like
            Its name. A file of that name is replaced in one step, when the new one is on the disk: whoever stops the
            process, or cuts the power, leaves the old one or the new one.

        Raises
        ------
        OSError
            If it cannot be written, as on a full disk; what was there stays as it was.
        TypeError
            As `to_bytes`.
        ValueError
            If `path` is a folder.
        """
        write(path, self.to_bytes())

    @classmethod
    def load(cls, path: Any) -> Self:
        """Read what `save` has written.

        Parameters
        ----------
        path : str or path-like
            The name of the file.

        Returns
        -------
        state
            Equal to the one that was saved.

        Raises
        ------
        OSError
            If the file cannot be read.
        ValueError
            If it is empty, truncated, damaged, none of kcalib's, of a later format, or holds another kind of state;
            or if it is a folder.
        """
        name = printable(os.fspath(path))
        return cls._of_content(unpack(read(path), name), name)

    @classmethod
    def _of_content(cls, content: Content, name: str) -> Self:
        """From what was read of what messages call `name`."""
        if content.kind != cls._kind:
            raise ValueError(
                f"{name} holds a state of the kind {content.kind!r}, expected {cls._kind!r}; kcalib.streaming.load "
                "reads every kind"
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
