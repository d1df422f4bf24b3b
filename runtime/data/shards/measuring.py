"""What a folder of samples gives on this machine: bytes/second of its storage, seconds of a core, samples/s of loaders.

    read       samples in the order of training, one after the other, their pages dropped from the cache before
    core       the seconds in which one core decodes one of them (images to PIXELS x PIXELS; arrays; else nothing)
    loading    samples/s of a ShardLoader with so many workers, after its first batches

What is predicted for a loader is the data path's own arithmetic: the storage passes as many samples/s as it was
measured to, c cores pass c / core, and w workers (one process where there are none) w / core of shards, which are read
ahead, but w / (read + core) of single files, for each of which a worker waits before it decodes it.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy

from placer.errors import UsageError
from placer.runtime.data.shards.loader import ShardLoader
from placer.runtime.data.shards.order import ShardOrder
from placer.runtime.data.shards.sample_files import Files, StoredSet
from placer.runtime.data.shards.samples import IMAGES, image_array
from placer.runtime.data.shards.shard_set import ShardSet, is_shard_folder
from placer.runtime.data.shards.single_files import SingleFiles

PIXELS = 224
ROWS = 16
# Batches that are not counted: workers start, and hold some ready.
WARM_UP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderRate:
    """Samples a second of a loader with so many workers: measured, and predicted from its parts."""

    workers: int
    samples_per_second: float
    predicted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredData:
    """One folder. read_seconds and core_seconds are of one sample; sizes are means, in bytes."""

    folder: str
    format: str
    samples: int
    stored_bytes: float
    decoded_bytes: float
    read_seconds: float
    core_seconds: float
    loaders: tuple[LoaderRate, ...]

    @property
    def read_bandwidth(self) -> float:
        """Bytes a second of the storage, one sample after the other."""
        return self.stored_bytes / self.read_seconds


def measured(folder: Path | str, *, workers: Sequence[int], samples: int, pixels: int = PIXELS) -> MeasuredData:
    """Measure `folder`, of shards or single files, by `samples` of its samples for each figure.

    Raises UsageError where it holds neither, or too few.
    """
    found: StoredSet = ShardSet(folder) if is_shard_folder(folder) else SingleFiles(Path(folder))
    order = ShardOrder(found.counts, 0, hold_out=False)
    places = [order.training(index) for index in range(min(samples, order.trained))]
    found.drop(places)
    began = time.perf_counter()
    files = [found.read(place) for place in places]
    read = (time.perf_counter() - began) / len(files)
    decode = Decoding(pixels)
    began = time.process_time()
    decoded = sum(decode(one) for one in files)
    core = (time.process_time() - began) / len(files)
    one = MeasuredData(
        folder=str(folder),
        format=found.kind,
        samples=order.samples,
        stored_bytes=sum(len(content) for entry in files for content in entry.values()) / len(files),
        decoded_bytes=decoded / len(files),
        read_seconds=read,
        core_seconds=core,
        loaders=(),
    )
    rates = []
    for count in workers:
        rate = _loader_rate(found, decode, count, samples)
        rates.append(LoaderRate(workers=count, samples_per_second=rate, predicted=predicted(one, count)))
    return replace(one, loaders=tuple(rates))


def predicted(one: MeasuredData, workers: int) -> float:
    """Samples a second of a loader, from the measured parts."""
    waited = 0.0 if one.format.endswith("shards") else one.read_seconds
    alone, processes = waited + one.core_seconds, max(1, workers)
    rates = [1 / one.read_seconds]
    if alone:
        rates.append(processes / alone)
    if one.core_seconds:
        rates.append(len(os.sched_getaffinity(0)) / one.core_seconds)
    return min(rates)


class Decoding:
    """Decodes what it knows of a sample's files; called, it gives the bytes of what it made."""

    def __init__(self, pixels: int) -> None:
        self.pixels = pixels

    def __call__(self, files: Files) -> int:
        """The bytes that the decoded files take."""
        total = 0
        for suffix, content in files.items():
            last = suffix.rpartition(".")[2].lower()
            try:
                if last in IMAGES:
                    total += image_array(content, self.pixels, self.pixels).nbytes
                elif last == "npy":
                    total += numpy.load(io.BytesIO(content), allow_pickle=False).nbytes
                else:
                    total += len(content)
            except (ValueError, EOFError) as error:
                raise UsageError(f"a file with the suffix {suffix} cannot be decoded: {error}") from None
        return total


def _loader_rate(found: StoredSet, decode: Decoding, workers: int, samples: int) -> float:
    order = ShardOrder(found.counts, 0, hold_out=False)
    places = [order.training(index) for index in range(min(order.trained, samples + (WARM_UP + 2 * workers) * ROWS))]
    found.drop(places)
    batches = iter(ShardLoader(found, decode, rows=ROWS, workers=workers))
    warm, counted = WARM_UP + 2 * workers, max(1, samples // ROWS)
    for _ in islice(batches, warm):
        pass
    began = time.perf_counter()
    for _ in islice(batches, counted):
        pass
    return counted * ROWS / (time.perf_counter() - began)
