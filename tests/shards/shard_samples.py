"""What tests of shards share: samples as single files, packed, and read again."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from placer.runtime.data.shards import ShardSet, pack
from placer.runtime.data.shards.formats import FormatName
from placer.runtime.data.shards.order import Place

COUNT = 41  # samples
WIDTH = 16  # numbers of each, those of the input `x` of a chain graph
LIBRARIES = {"tar": "tarfile", "parquet": "pyarrow", "tfrecord": "numpy"}


def key(files: dict[str, bytes]) -> str:
    """The text of a sample."""
    return files["txt"].decode()


def singles(folder: Path) -> Path:
    """Samples in two subfolders: a text and an array each, every fifth with a note, the first's empty."""
    for number in range(COUNT):
        path = folder / "singles" / ("even" if number % 2 == 0 else "odd") / f"{number:04d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"sample {number}")
        numpy.save(path.with_suffix(".x.npy"), numpy.full(WIDTH, number, numpy.float32))
        if number % 5 == 0:
            path.with_suffix(".note").write_bytes(bytes(number))
    return folder / "singles"


def packed(source: Path, format: FormatName, size: int = 0, into: str = "") -> Path:
    """Shards of about six samples, or of at most `size` bytes; skips where the format's library is missing."""
    pytest.importorskip(LIBRARIES[format], reason="the format needs placer-planner[data]")
    size = size or (12_000 if format == "tar" else 4_000)
    return pack(source, source.parent / (into or format), shard_bytes=size, labels=True, to=format).folder


def everything(samples: ShardSet) -> list[dict[str, bytes]]:
    """All samples in the order in which they lie."""
    return [samples.read(Place(shard, number)) for shard, count in enumerate(samples.counts) for number in range(count)]
