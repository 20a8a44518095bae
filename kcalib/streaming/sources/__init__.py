"""Samples that are read in chunks: `source` opens what users name, a module for each format has its `Reader`.

layout         what the user asks for, and which names of a file that means
reader         the base class of readers, and rows taken from blocks of any size
named_arrays   pairs, mappings and other arrays that can be sliced
npy            .npy and .npz files; `stored` finds the arrays in them
stores         HDF5 files and Zarr folders
tables         Parquet files, Arrow tables, data frames, Hugging Face data sets, structured arrays
text           .csv and .tsv files
batches        iterators of pairs or dictionaries
reader_source  readers one after the other as a `Source`
together       the sources of several models side by side
opening        from what users name to readers
"""

from kcalib.streaming.sources.opening import source
from kcalib.streaming.sources.reader_source import ReaderSource

__all__ = ["ReaderSource", "source"]
