"""Samples that are read in chunks: `source` opens what users name; a module for each format has its `Reader`."""

from kcalib.streaming.sources.opening import source
from kcalib.streaming.sources.reader_source import ReaderSource

__all__ = ["ReaderSource", "source"]
