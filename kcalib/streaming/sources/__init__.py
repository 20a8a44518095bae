"""Samples that are read in pieces: `source` opens what users name, a file for each format has its `Part`.

sliceable      two arrays, named arrays, structured arrays
npy            .npy and .npz files
stores         HDF5 files and folders of Zarr
arrow          Parquet files, tables of Arrow, data sets of Hugging Face
text           .csv and .tsv files: `lines` one by one, `fast_text` by pyarrow
batches        iterators of pairs and of dictionaries
parameters     predicted distributions, as arrays that are cut and joined
part           what a part is, how its rows are read in order, the checks of their values
parts          parts one after the other as a `Source`
content        damage, text, what identifies a file
opening        from what users name to parts
"""

from kcalib.streaming.sources.opening import source
from kcalib.streaming.sources.parts import PartsSource

__all__ = ["PartsSource", "source"]
