"""`source`: from what users name to parts."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kcalib._backend.files import printable
from kcalib._input.columns import LABEL_NAMES, FileError
from kcalib._input.source import Source
from kcalib.streaming.sources.arrow import fragment_parts, frame_part, hugging_face_part, parquet_part, table_part
from kcalib.streaming.sources.batches import BatchesPart
from kcalib.streaming.sources.content import check_content
from kcalib.streaming.sources.npy import npy_part, npz_part
from kcalib.streaming.sources.part import Part, Wanted
from kcalib.streaming.sources.parts import PartsSource
from kcalib.streaming.sources.sliceable import FieldsPart, mapping, named_arrays, pair
from kcalib.streaming.sources.stores import HDF5Part, ZarrPart, is_zarr
from kcalib.streaming.sources.text import TextPart

FORMATS: dict[str, Callable[[Path, Wanted], Part]] = {
    ".npy": npy_part,
    ".npz": npz_part,
    ".parquet": parquet_part,
    ".csv": TextPart,
    ".tsv": TextPart,
    ".csv.gz": TextPart,
    ".tsv.gz": TextPart,
    ".h5": HDF5Part,
    ".hdf5": HDF5Part,
    ".zarr": ZarrPart,
}


def source(
    data: Any,
    *,
    labels: Any = None,
    probs: str | None = None,
    logits: str | None = None,
    from_logits: bool = False,
    classes: Iterable[Any] | None = None,
    mean: str | None = None,
    std: str | None = None,
    samples: str | None = None,
    rate: str | None = None,
    dispersion: str | None = None,
    cov: str | None = None,
    scale_tril: str | None = None,
    loc: str | None = None,
    scale: str | None = None,
) -> Source:
    """Samples that are read in pieces, from files, arrays or batches.

    Parameters
    ----------
    data : path, list of paths, pair of arrays, mapping of arrays, table, iterable or function
        Files: a path, one with wildcards (``"parts/*.npz"``), a folder, or a list of these; several files are read one
        after the other, those of a wildcard or a folder, and of folders in it, in the order of their names. In a folder
        names that begin with "." or "_" are left out, and all files of known suffixes are of one format. `.npy`:
        predictions with the labels in a file beside it (``labels.npy``, or another of the names below), or an array
        with fields; `.npz`: members are read in pieces, also compressed ones. `.parquet`: a batch after the other.
        `.csv` and `.tsv`, also `.gz`: a header, and a sample a line; labels are a column, and ``n`` is not known.
        ``.h5``, ``.hdf5``: arrays, read only. `.zarr`: a group of arrays, of format 2 or 3.

        Arrays: a pair ``(y_true, y_pred)`` of arrays of any library, memory maps, or arrays of h5py or Zarr; a mapping
        of names to arrays, also an ``h5py.File`` or ``zarr.Group``; an array with fields.

        Tables: a ``pyarrow.dataset.Dataset`` of Parquet files, a ``pyarrow.Table``, a data frame of pandas or
        polars (one that is lazy is collected), or a ``Dataset`` or
        ``IterableDataset`` of Hugging Face ``datasets``.

        Instead of arrays of predictions a pair may have predicted distributions, of `kcalib.distributions` or another
        library's (`kcalib.distributions.as_distribution`).

        Batches: an iterable of pairs ``(y_true, y_pred)``, of batches or of single samples, or of dictionaries. An
        iterator is read once; a function that returns an iterator, called for each reading, or a list can be read
        from any sample on.
    labels : str or path or array, optional
        Name of the array or column of labels, or an existing .npy file of them; default the first of "labels",
        "label", "y_true", "y", "target", "targets", "y_test" that there is. An array, if `data` is one of predictions.
    probs, logits : str, optional
        Name of the array or column of probabilities or logits, or the prefix of a family of columns (``probs_0``,
        ``probs_1``, ..., or with the names of the classes). Default: the first of "probs", "probabilities", "y_prob",
        "y_proba", "prob", "proba", "y_pred", "predictions", "p", then of "logits", "y_logits", "y_logit", "logit".
    from_logits : bool
        Whether the predictions are logits, however they are named.
    classes : iterable, optional
        The label of each column; default 0..m-1, the suffixes of a family of columns, or an array ``classes`` of a
        file of arrays. Labels that are strings need one of these: a piece does not show all of them.

    mean, std, samples, rate, dispersion, cov, scale_tril, loc, scale : str, optional
        Names of the arrays or columns of parameters of predicted distributions, or prefixes of families of columns
        (``mean_0``, ``mean_1``, ... for targets that are vectors); `labels` then names the targets. They say what the
        distributions are: mean and std `kcalib.distributions.Normal`, samples ``Samples``, rate ``Poisson``, mean and
        dispersion ``NegativeBinomial``, mean and cov or scale_tril ``MultivariateNormal``, loc and scale ``Laplace``.
        Default: if there are no class probabilities, the first of these, but for Laplace, that there are all parameters
        of, by the names that they have here, or "y_mean", "mu", "y_std", "sigma", "y_samples", "y_rate".

    Returns
    -------
    Source
        With ``n``, ``n_classes``, ``prediction``, ``chunks``, ``read``, ``fingerprint`` and ``describe``.
        Functions of kcalib that work in pieces take it in place of ``y_true``.

    Raises
    ------
    FileNotFoundError, OSError
        If a file is not there, or the system refuses to open it.
    TypeError
        If `data` is nothing of the above.
    ValueError
        If there are no predictions or labels, if lengths or classes differ, if a file is damaged. Values are checked as
        they are read; every message names file, column and row.
    ImportError
        If a library that the format needs is not there; the message says how to install it.

    Notes
    -----
    Opening reads headers. A chunk is read when it is asked for, and is the only one held: memory is O(rows in a chunk)
    beside the samples, but for formats that keep more together (row groups of Parquet, chunks of HDF5 and Zarr).
    Pickling keeps what was given, of files their paths: another process opens them again.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.streaming import source
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=1000)
    >>> samples = source((rng.uniform(size=1000) < p, p))
    >>> samples.n, samples.n_classes, [len(y) for y, p in samples.chunks(400)]
    (1000, 2, [400, 400, 200])

    A function that returns an iterator, for what is made on the way:

    >>> def batches():
    ...     rng = np.random.default_rng(2)
    ...     for _ in range(10):
    ...         p = rng.dirichlet(np.ones(3), size=64)
    ...         yield {"labels": rng.integers(3, size=64), "probs": p}
    >>> y, p = source(batches).read(100, 200)
    >>> p.shape
    (100, 3)
    """
    named = None if classes is None else tuple(np.asarray(list(classes)).tolist())
    parameters = {
        "mean": mean,
        "std": std,
        "samples": samples,
        "rate": rate,
        "dispersion": dispersion,
        "cov": cov,
        "scale_tril": scale_tril,
        "loc": loc,
        "scale": scale,
    }
    wanted = Wanted(probs, logits, labels, bool(from_logits), named, parameters)
    return opened(data, wanted)


def opened(data: Any, wanted: Wanted) -> PartsSource:
    """The source of what is wanted of `data`."""
    return PartsSource(parts_of(data, wanted), (opened, (data, wanted)))


def parts_of(data: Any, wanted: Wanted) -> list[Part]:
    """The parts of what `source` takes."""
    if _is_path(data):
        return file_parts([data], wanted)
    if isinstance(data, (list, tuple)) and data and all(map(_is_path, data)):
        return file_parts(data, wanted)
    if (parts := _of_library(data, wanted)) is not None:
        return parts
    if isinstance(data, tuple) and len(data) == 2 and not any(isinstance(entry, Mapping) for entry in data):
        return [pair(*data, wanted)]
    if isinstance(data, np.ndarray) and data.dtype.names is not None:
        return [FieldsPart(lambda start, stop: data[start:stop], data.dtype, len(data), wanted)]
    if hasattr(data, "shape"):
        if wanted.labels is None or isinstance(wanted.labels, str):
            raise TypeError("`data` is one array, expected (y_true, y_pred); pass both, or labels= with an array")
        return [pair(wanted.labels, data, wanted)]
    if isinstance(data, Mapping):
        return [mapping(data, wanted)]
    if callable(data):
        return [BatchesPart(lambda: iter(data()), wanted, once=False)]
    if isinstance(data, Iterable):
        once = isinstance(data, Iterator)
        return [BatchesPart(lambda: iter(data), wanted, once=once)]
    raise TypeError(
        f"`data` is a {type(data).__name__}, expected paths, a pair (y_true, y_pred), a mapping of arrays, an iterable "
        "of batches, or a function that returns an iterator of them"
    )


def _of_library(data: Any, wanted: Wanted) -> list[Part] | None:
    """Objects of libraries that need not be there, told by their classes' names; None for others."""
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(data).__mro__}
    if kinds & {("datasets", "Dataset"), ("datasets", "IterableDataset")}:
        return [hugging_face_part(data, wanted)]
    if ("pyarrow", "Dataset") in kinds:
        return fragment_parts(data, wanted)
    if ("pyarrow", "Table") in kinds:
        return [table_part(data, wanted)]
    if kinds & {("pandas", "DataFrame"), ("polars", "DataFrame"), ("polars", "LazyFrame")}:
        return [frame_part(data, wanted)]
    if ("zarr", "Group") in kinds:
        return [named_arrays("the group", sorted(data.array_keys()), data.__getitem__, wanted, "")]
    return None


def file_parts(paths: Iterable[Any], wanted: Wanted) -> list[Part]:
    files = [file for path in paths for file in _files(Path(path))]
    formats = {".zarr" if file.is_dir() else suffix_of(file) for file in files}
    if len(formats) > 1:
        raise FileError(
            f"the files are of several formats, {', '.join(sorted(formats))}; expected one, name them by a wildcard "
            f"such as '*{min(formats)}'"
        )
    return [_opened(file, wanted) for file in files]


def _opened(file: Path, wanted: Wanted) -> Part:
    try:
        if not file.is_dir():
            check_content(file)
        return FORMATS[".zarr" if file.is_dir() else suffix_of(file)](file, wanted)
    except FileError as error:
        raise type(error)(f"{printable(file)}: {error}") from None


def _files(path: Path) -> list[Path]:
    """The files that a path names: itself, those of a folder or of a wildcard, in the order of their names."""
    if is_zarr(path):
        return [path]
    if path.is_dir():
        stores = [folder for folder in path.rglob("*.zarr") if is_zarr(folder)]
        files = (file for file in path.rglob("*") if _is_part(file.relative_to(path)) and file.is_file())
        found = sorted(stores or files)
        if not found:
            raise FileError(
                f"{printable(path)}: the folder has no files of a known suffix ({', '.join(FORMATS)}); name others"
            )
        return found
    if not path.exists() and glob.has_magic(str(path)):
        found = sorted(map(Path, glob.glob(str(path), recursive=True)))
        if not found:
            raise FileError(f"{printable(path)}: no file has such a name; correct the pattern")
        return found
    path.stat()  # the system's own error if there is none
    if suffix_of(path) not in FORMATS:
        raise FileError(
            f"{printable(path)}: the suffix is {suffix_of(path)!r}, expected one of {', '.join(FORMATS)}; convert the "
            "file"
        )
    return [path]


def _is_part(file: Path) -> bool:
    """Whether a file of a folder holds predictions: no hidden ones, no marks of jobs, no labels beside predictions."""
    if any(name.startswith((".", "_")) for name in file.parts):
        return False
    return suffix_of(file) in FORMATS and not (suffix_of(file) == ".npy" and file.stem in LABEL_NAMES)


def suffix_of(file: Path) -> str:
    """The last suffix, with the one before if it says that the content is compressed."""
    last = file.suffix.lower()
    return Path(file.stem).suffix.lower() + last if last == ".gz" else last


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))
