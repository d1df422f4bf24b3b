"""What a path is predicted from, measured apart: the disk and the memory as they are, and a core's work on a sample.

latency      seconds of a request of one page at a random place, with nothing read ahead
bandwidth    bytes/second of one file from beginning to end
memory       bytes/second of a copy, of which each byte is read and written
core         seconds of a core for one sample: read from the page cache, and decoded
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy

from examples.data_path.measured.samples import Kept
from placer.runtime.data.shards import ShardSet
from placer.runtime.data.shards.folders.files import AHEAD
from placer.runtime.data.shards.measuring import PIXELS, Decoding
from placer.runtime.data.shards.order import Place

PAGE = 4096
REQUESTS = 200
COPIED = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The storage without a throttle, and the memory."""

    latency_seconds: float
    read_bandwidth: float
    memory_bandwidth: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of `samples` samples: what one of them takes of the storage, of memory and of a core."""

    name: str
    samples: int
    at_random: bool
    stored_bytes: float
    decoded_bytes: float
    core_seconds: float


def measured_disk(shards: ShardSet) -> Disk:
    """The disk by the first of `shards`."""
    path = Path(shards.folder.name) / shards.manifest.shards[0].name
    shards.drop([Place(0, 0)])
    handle = os.open(path, os.O_RDONLY)
    try:
        return Disk(
            latency_seconds=_latency(handle, path),
            read_bandwidth=_bandwidth(handle, path),
            memory_bandwidth=_memory_bandwidth(),
        )
    finally:
        os.close(handle)


def measured_format(kept: Kept) -> Format:
    """The work of one process on every sample of a format, its files in the page cache."""
    places = [Place(shard, number) for shard, count in enumerate(kept.samples.counts) for number in range(count)]
    decode = Decoding(PIXELS)
    for place in places:
        kept.samples.read(place)
    began = time.process_time()
    decoded = sum(decode(kept.samples.read(place)) for place in places)
    seconds = time.process_time() - began
    return Format(
        name=kept.name,
        samples=len(places),
        at_random=kept.at_random,
        stored_bytes=kept.stored_bytes,
        decoded_bytes=decoded / len(places),
        core_seconds=seconds / len(places),
    )


def _latency(handle: int, path: Path) -> float:
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
    pages = numpy.random.default_rng(0).permutation(path.stat().st_size // PAGE)[:REQUESTS]
    began = time.perf_counter()
    for page in pages:
        os.pread(handle, PAGE, int(page) * PAGE)
    return (time.perf_counter() - began) / len(pages)


def _bandwidth(handle: int, path: Path) -> float:
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    began, size = time.perf_counter(), path.stat().st_size
    for offset in range(0, size, AHEAD):
        os.pread(handle, AHEAD, offset)
    return size / (time.perf_counter() - began)


def _memory_bandwidth() -> float:
    source, target = numpy.ones(COPIED, numpy.uint8), numpy.ones(COPIED, numpy.uint8)  # zeros have no pages yet
    began = time.perf_counter()
    numpy.copyto(target, source)
    return 2 * COPIED / (time.perf_counter() - began)
