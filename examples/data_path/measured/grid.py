"""The paths that are tried: formats x workers x cores x throttles, chosen so that one part clearly binds.

Rates follow from what was measured: a throttle passes either well under or well over what the processes pass, at most
so much that a pass over the set takes some seconds. What would come within `MARGIN` of a tie all the same is left out,
as is what ends too soon to be measured: nothing can be said there of what binds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from examples.data_path.measured.parts import Disk, Format
from examples.data_path.measured.paths import Path, bottleneck_rate, clear_of_ties, predicted

MARGIN = 0.15
# Workers, and cores that the loader may use: by itself, one and two workers, and two that share a core.
PROCESSES = ((0, 2), (1, 2), (2, 2), (2, 1))
# The throttle over what the processes pass. Four times over, twice the processes still do not meet it.
TIGHT, WIDE = 0.4, 4.0
# Seconds of a pass over the set: throttled at least, and by its processes at least.
THROTTLED_SECONDS, SHORTEST_SECONDS = 3.0, 1.0


def grid(formats: Sequence[Format], disk: Disk) -> tuple[Path, ...]:
    """The paths of all formats, in order."""
    found = (path for one in formats for path in _candidates(one, disk))
    return tuple(path for path in found if _measurable(path, disk))


def _candidates(one: Format, disk: Disk) -> Iterator[Path]:
    for workers, cores in PROCESSES:
        free = Path(format=one, workers=workers, cores=cores)
        passed = bottleneck_rate(predicted(free, disk))
        tight = min(TIGHT * passed, one.samples / THROTTLED_SECONDS)
        yield _throttled(free, tight)
        yield _throttled(free, WIDE * passed)
        if one.at_random and workers == 1:
            yield Path(format=one, workers=workers, cores=cores, requests_per_second=round(tight))


def _throttled(path: Path, samples_per_second: float) -> Path:
    rate = round(samples_per_second * path.format.stored_bytes)
    return Path(format=path.format, workers=path.workers, cores=path.cores, bytes_per_second=rate)


def _measurable(path: Path, disk: Disk) -> bool:
    found = predicted(path, disk)
    slower = (path.bytes_per_second or 0.0) <= disk.read_bandwidth / 2
    lasts = path.format.samples / bottleneck_rate(found) >= SHORTEST_SECONDS
    return slower and lasts and clear_of_ties(found, MARGIN)
