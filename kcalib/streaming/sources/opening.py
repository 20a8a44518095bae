"""`source` opens what users name; `FORMATS` has the reader of each suffix."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kcalib._backend.files import printable
from kcalib._backend.options import check_choice
from kcalib._input.columns import LABEL_NAMES, FileError
from kcalib._input.parameters import PARAMETERS
from kcalib._input.source import Source
from kcalib.streaming.language_models.source import LOGS, log_reader
from kcalib.streaming.sources.batches import BatchesReader
from kcalib.streaming.sources.content import check_file
from kcalib.streaming.sources.layout import ReadOptions
from kcalib.streaming.sources.named_arrays import mapping_reader, pair_reader
from kcalib.streaming.sources.npy import npy_reader, npz_reader
from kcalib.streaming.sources.reader import Reader
from kcalib.streaming.sources.reader_source import ReaderSource
from kcalib.streaming.sources.stores import hdf5_reader, is_zarr, zarr_group_reader, zarr_reader
from kcalib.streaming.sources.tables import (
    arrow_reader,
    fragment_readers,
    frame_reader,
    hugging_face_reader,
    parquet_reader,
    structured_reader,
)
from kcalib.streaming.sources.text import text_reader

FORMATS: dict[str, Callable[[Path, ReadOptions], Reader]] = {
    ".npy": npy_reader,
    ".npz": npz_reader,
    ".parquet": parquet_reader,
    ".csv": text_reader,
    ".tsv": text_reader,
    ".csv.gz": text_reader,
    ".tsv.gz": text_reader,
    ".h5": hdf5_reader,
    ".hdf5": hdf5_reader,
    ".zarr": zarr_reader,
    **dict.fromkeys(LOGS, lambda file, options: log_reader([file], options)),
}


def source(
    data: Any,
    *,
    labels: Any = None,
    probs: str | None = None,
    logits: str | None = None,
    from_logits: bool = False,
    classes: Iterable[Any] | None = None,
    parameters: Mapping[str, str] | None = None,
    clusters: Any = None,
    missing: str = "refuse",
) -> Source:
    """Open samples in files, arrays or batches, to read them in chunks.

    Parameters
    ----------
    data : path, list of paths, pair of arrays, mapping of arrays, table, iterable or function
        Files: a path, one with wildcards (``"folder/*.npz"``), a folder, or a list of these. Files of a wildcard or a
        folder, including its subfolders, are read in the order of their names. They must have the same format; names
        that begin with "." or "_" are skipped.

        - `.npy`: predictions, with the labels in a file next to it (``labels.npy``, or another of the names below), or
          an array with fields;
        - `.npz`: named arrays, also compressed;
        - `.parquet`: columns, or a column of lists;
        - `.csv`, `.tsv`, also `.gz`: a header, then one sample per line; ``n`` is unknown;
        - ``.h5``, ``.hdf5``: arrays;
        - `.zarr`: a group of arrays, of format 2 or 3;
        - ``.jsonl``, ``.json``: logs of one language model, see `kcalib.streaming.read_answers`.

        Arrays: a pair ``(y_true, y_pred)`` of arrays of any library, memory maps, or arrays of h5py or Zarr; a mapping
        of names to arrays, also an ``h5py.File`` or ``zarr.Group``; or an array with fields. Instead of an array,
        ``y_pred`` may be predicted distributions of `kcalib.distributions` or of another library
        (`kcalib.distributions.as_distribution`).

        Tables: a ``pyarrow.dataset.Dataset`` of Parquet files, a ``pyarrow.Table``, a data frame of pandas or polars (a
        lazy one is collected), or a ``Dataset`` or ``IterableDataset`` of Hugging Face ``datasets``.

        Batches: an iterable of pairs ``(y_true, y_pred)``, for batches or for single samples, or of dictionaries. An
        iterator can be read once. A list, or a function that returns an iterator, can be read again from any sample.
    labels : str or path or array, optional
        Name of the array or column of labels, or an .npy file with labels. Default: the first that exists of "labels",
        "label", "y_true", "y", "target", "targets", "y_test". An array, if `data` is an array of predictions.
    probs, logits : str, optional
        Name of the array or column of probabilities or logits, or several columns ("cat,dog,owl"), or their prefix
        (``probs_0``, ``probs_1``, ..., or with the names of classes). Default: the first that exists of "probs",
        "probabilities", "y_prob", "y_proba", "prob", "proba", "y_pred", "predictions", "p", then of "logits",
        "y_logits", "y_logit", "logit".
    from_logits : bool
        Whether the predictions are logits, whatever their name.
    classes : iterable, optional
        The label of each column. Default: the suffixes of the columns, an array ``classes`` in the file, or 0..m-1.
        String labels need names of classes, because a chunk may not contain every label. Columns that are named after
        classes are reordered.
    parameters : mapping of str to str, optional
        Names of the arrays or columns (or prefixes of columns) of the parameters of predicted distributions, such as
        ``{"mean": "forecast", "std": "spread"}``; `labels` then names the targets. The parameters determine the family:
        mean and std `kcalib.distributions.Normal`, samples ``Samples``, rate ``Poisson``, mean and dispersion
        ``NegativeBinomial``, mean and cov or scale_tril ``MultivariateNormal``, loc and scale ``Laplace``, with df
        ``StudentT``, mean_log and std_log ``LogNormal``, shape and scale ``Gamma``. Default: if there are no class
        probabilities, the first of these families, except those with scale, whose parameters exist by the names above
        or by "y_mean", "mu", "y_pred", "y_std", "sigma", "y_samples", "y_rate".
    clusters : str, path or array, optional
        Name of the array or column with the cluster of each sample, or an .npy file; an array, if `data` is a pair of
        arrays. Tests then account for dependence within clusters, as with ``CalibrationState(clusters=True)``. The file
        is read twice.
    missing : {"refuse", "drop"}
        What to do with ensemble members that are NaN, see `kcalib.distributions.Samples`.

    Returns
    -------
    Source
        With ``n``, ``n_classes``, ``prediction``, ``chunks``, ``read``, ``fingerprint`` and ``describe``. Functions
        that work in chunks take it in place of ``y_true``.

    Raises
    ------
    FileNotFoundError, OSError
        If a file does not exist or cannot be opened.
    TypeError
        If `data` is of another type.
    ValueError
        If there are no predictions or labels, if lengths or classes differ, or if a file is damaged. Values are checked
        when they are read; messages name file, column and row.
    ImportError
        If a library for the format is missing; the message says how to install it.

    Notes
    -----
    Opening a source reads headers only. Only one chunk is held in memory, except for formats that store more samples
    together (row groups of Parquet, chunks of HDF5 and Zarr). A pickled source holds the paths of files, which are
    opened again in the other process.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.streaming import source
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=1000)
    >>> samples = source((rng.uniform(size=1000) < p, p))
    >>> samples.n, samples.n_classes, [len(y) for y, p in samples.chunks(400)]
    (1000, 2, [400, 400, 200])

    A function that returns an iterator, for samples that are computed on the fly:

    >>> def batches():
    ...     rng = np.random.default_rng(2)
    ...     for _ in range(10):
    ...         p = rng.dirichlet(np.ones(3), size=64)
    ...         yield {"labels": rng.integers(3, size=64), "probs": p}
    >>> y, p = source(batches).read(100, 200)
    >>> p.shape
    (100, 3)
    """
    unknown = sorted(set(parameters or {}) - set(PARAMETERS))
    if unknown:
        raise ValueError(f"`parameters` has the key {unknown[0]!r}, expected keys among {', '.join(PARAMETERS)}")
    options = ReadOptions(
        probs,
        logits,
        labels,
        bool(from_logits),
        classes=None if classes is None else tuple(np.asarray(list(classes)).tolist()),
        parameters=dict(parameters or {}),
        clusters=clusters,
        missing=check_choice("missing", missing, ("refuse", "drop")),
    )
    return open_source(data, options)


def open_source(data: Any, options: ReadOptions) -> ReaderSource:
    """Open what `source` takes."""
    readers, name = _readers(data, options), options.clusters
    log = readers[0].layout.log
    if name is None and log is not None and log.clusters is not None:
        name = "text"  # tokens of a text depend on each other
    clusters = None if name is None else _open_clusters(data, replace(options, clusters=None), name)
    return ReaderSource(readers, (open_source, (data, options)), clusters)


def _open_clusters(data: Any, options: ReadOptions, clusters: Any) -> ReaderSource:
    """Open a source whose labels are the clusters of the samples."""
    spelled = options.columns("array", ()).spelled("clusters")
    if isinstance(data, Iterator):
        raise FileError(
            f"{spelled} reads the samples twice, but `data` is an iterator; pass a function that returns one"
        )
    is_named = _is_path(clusters)
    is_pair = isinstance(data, tuple) and len(data) == 2 and not any(isinstance(entry, Mapping) for entry in data)
    if is_pair and is_named:
        raise TypeError(f"`clusters` is {clusters!r}, but a pair of arrays has no names; pass an array")
    if not (is_pair or is_named):
        raise TypeError(
            "`clusters` is an array, expected a name; arrays go with a pair: source((y, p), clusters=array)"
        )
    try:
        readers = _readers((clusters, data[1]) if is_pair else data, replace(options, labels=clusters, has_names=True))
        for reader in readers if is_named else ():
            if reader.layout.stored_labels is None and reader.layout.targets[0] != os.fspath(clusters):
                raise FileError(
                    f"{spelled} is a name, but batches are pairs without names; pass batches as dictionaries"
                )
    except FileError as error:
        labels = options.columns("array", ()).spelled("labels")
        raise type(error)(str(error).replace(labels, spelled).replace("'y_true'", "of the clusters")) from None
    return ReaderSource(readers)


def _readers(data: Any, options: ReadOptions) -> list[Reader]:
    if _is_path(data):
        return _file_readers([data], options)
    if isinstance(data, (list, tuple)) and data and all(map(_is_path, data)):
        return _file_readers(data, options)
    # The libraries of these classes may be missing.
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(data).__mro__}
    if kinds & {("datasets", "Dataset"), ("datasets", "IterableDataset")}:
        return [hugging_face_reader(data, options)]
    if ("pyarrow", "Dataset") in kinds:
        return fragment_readers(data, options)
    if ("pyarrow", "Table") in kinds:
        return [arrow_reader(data, options)]
    if kinds & {("pandas", "DataFrame"), ("polars", "DataFrame"), ("polars", "LazyFrame")}:
        return [frame_reader(data, options)]
    if ("zarr", "Group") in kinds:
        return [zarr_group_reader(data, options)]
    if isinstance(data, tuple) and len(data) == 2 and not any(isinstance(entry, Mapping) for entry in data):
        return [pair_reader(*data, options)]
    if isinstance(data, np.ndarray) and data.dtype.names is not None:
        return [structured_reader(data, options)]
    if hasattr(data, "shape"):
        if options.labels is None or isinstance(options.labels, str):
            raise TypeError(
                "`data` is a single array, expected (y_true, y_pred); pass a pair, or an array of labels by labels="
            )
        return [pair_reader(options.labels, data, options)]
    if isinstance(data, Mapping):
        return [mapping_reader(data, options)]
    if callable(data):
        return [BatchesReader(lambda: iter(data()), options, is_resumable=True)]
    if isinstance(data, Iterable):
        return [BatchesReader(lambda: iter(data), options, is_resumable=not isinstance(data, Iterator))]
    raise TypeError(
        f"`data` is a {type(data).__name__}, expected paths, a pair (y_true, y_pred), a mapping of arrays, an iterable "
        "of batches, or a function that returns an iterator of them"
    )


def _file_readers(paths: Iterable[Any], options: ReadOptions) -> list[Reader]:
    files = [file for path in paths for file in find_files(Path(path))]
    formats = {".zarr" if file.is_dir() else suffix_of(file) for file in files}
    if len(formats) > 1:
        raise FileError(
            f"the files have several formats, {', '.join(sorted(formats))}, expected one; use a wildcard "
            f"such as '*{min(formats)}'"
        )
    (suffix,) = formats
    readers = []
    for file in files:
        try:
            if suffix != ".zarr":
                check_file(file)
            if suffix not in LOGS:  # logs are read together: tasks may differ in the number of choices
                readers.append(FORMATS[suffix](file, options))
            elif file == files[-1]:
                readers.append(log_reader(files, options))
        except FileError as error:
            raise type(error)(f"{printable(file)}: {error}") from None
    return readers


def find_files(path: Path) -> list[Path]:
    """Return the files of a path, a folder or a wildcard, in the order of their names."""
    if is_zarr(path):
        return [path]
    if path.is_dir():
        stores = [folder for folder in path.rglob("*.zarr") if is_zarr(folder)]
        files = sorted(
            stores or (file for file in path.rglob("*") if _is_data(file.relative_to(path)) and file.is_file())
        )
        if not files:
            raise FileError(
                f"{printable(path)}: the folder has no files with a known suffix ({', '.join(FORMATS)}); name others"
            )
        return files
    if not path.exists() and glob.has_magic(str(path)):
        files = sorted(map(Path, glob.glob(str(path), recursive=True)))
        if not files:
            raise FileError(f"{printable(path)}: no file matches; correct the pattern")
        return files
    path.stat()  # raises the error of the system if it does not exist
    if suffix_of(path) not in FORMATS:
        raise FileError(
            f"{printable(path)}: the suffix is {suffix_of(path)!r}, expected one of {', '.join(FORMATS)}; convert the "
            "file"
        )
    return [path]


def _is_data(file: Path) -> bool:
    """Return whether a file of a folder holds predictions: not hidden, and not labels or results next to them."""
    if any(name.startswith((".", "_")) for name in file.parts):
        return False
    is_beside = file.stem in LABEL_NAMES if suffix_of(file) == ".npy" else file.match("results_*.json")  # of lm_eval
    return suffix_of(file) in FORMATS and not is_beside


def suffix_of(file: Path) -> str:
    """Return the last suffix, or the last two of a compressed file."""
    last = file.suffix.lower()
    return Path(file.stem).suffix.lower() + last if last == ".gz" else last


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))
