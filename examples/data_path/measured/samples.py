"""The data set: drawn JPEG images and arrays of the same size in pixels, each as single files and as a shard.

A set of some MB in several shards would be asked for at once, as each is read from its own beginning; one shard is read
from beginning to end, as each of many large ones is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy

from placer.errors import require_extra
from placer.runtime.data.shards import ShardSet, pack
from placer.runtime.data.shards.measuring import PIXELS
from placer.runtime.data.shards.single_files import SingleFiles

WIDTH, HEIGHT, QUALITY = 500, 375, 92
# A coarse image under noise: about 95 kB as JPEG, of which ImageNet has 110 kB.
COARSE, NOISE = (12, 16), 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Samples in one format, and the bytes of the storage that one of them takes."""

    name: str
    samples: ShardSet | SingleFiles
    stored_bytes: float

    @property
    def at_random(self) -> bool:
        """Whether each sample is a request of its own."""
        return isinstance(self.samples, SingleFiles)


def made(folder: Path, count: int) -> tuple[Kept, ...]:
    """So many samples in all four formats in `folder`, written to its storage."""
    found = []
    for kind, write in (("jpeg", _write_image), ("npy", _write_array)):
        draws = numpy.random.default_rng(0)
        singles = folder / f"{kind}-files"
        singles.mkdir()
        for number in range(count):
            with (singles / f"{number:05d}.{kind}").open("wb") as file:
                write(file, draws)
                file.flush()
                os.fsync(file.fileno())
        packed = pack(singles, folder / f"{kind}-shards", shard_bytes=2**40)
        on_disk = sum(path.stat().st_blocks * 512 for path in singles.iterdir())
        found.append(Kept(name=f"{kind} shards", samples=ShardSet(packed.folder), stored_bytes=packed.bytes / count))
        found.append(Kept(name=f"{kind} files", samples=SingleFiles(singles), stored_bytes=on_disk / count))
    return tuple(found)


def _write_image(file: BinaryIO, draws: numpy.random.Generator) -> None:
    require_extra("data", "PIL")
    from PIL import Image

    coarse = Image.fromarray(draws.integers(0, 256, (*COARSE, 3), dtype=numpy.uint8))
    smooth = numpy.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)).astype(numpy.int16)
    noisy = smooth + draws.integers(-NOISE, NOISE + 1, smooth.shape, dtype=numpy.int16)
    Image.fromarray(noisy.clip(0, 255).astype(numpy.uint8)).save(file, "JPEG", quality=QUALITY)


def _write_array(file: BinaryIO, draws: numpy.random.Generator) -> None:
    numpy.save(file, draws.integers(0, 256, (PIXELS, PIXELS, 3), dtype=numpy.uint8))
