"""Predicted against measured samples/s of data paths of this machine, and whether what should bind does.

    python -m examples.data_path.measured                          some minutes; exits 1 where it does not hold
    python -m examples.data_path.measured --plot paths.svg         and predicted beside measured (placer-planner[plot])

It takes Linux, root, the blkio controller of cgroup v1, two cores and placer-planner[data], and says what is missing
(exit 2). Images as JPEG and arrays, each as single files and as a shard, are loaded by `ShardLoader` with 0, 1 and 2
workers on one core or two, from storage that a control group throttles; what placer's data path is told was measured
apart (parts.py). Then the storage is doubled, a worker is added, a core is added: what binds is the part whose relief
makes the loader faster by much more than that of the others. Paths near a tie are not among them (grid.py).

Exit 1 where the mean absolute error is above 15%, where another part binds than was predicted, or where fewer than 12
paths were left. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from examples.data_path.measured.grid import grid
from examples.data_path.measured.parts import Disk, Format, measured_disk, measured_format
from examples.data_path.measured.picture import BOUND, draw
from examples.data_path.measured.runs import outcome
from examples.data_path.measured.samples import Kept, made
from examples.data_path.measured.throttle import Throttle
from examples.data_path.measured.verdict import Outcome, mean_error
from placer.errors import PlacerError, UsageError, require_extra
from placer.runtime.data.shards import ShardSet

FEWEST = 12
COLUMNS = ("path", "workers", "cores", "throttle", "predicted", "measured", "error", "binds", "storage x2", "worker +1")
ROW = "{:12} {:>7} {:>5} {:>14} {:>9} {:>8} {:>6} {:>8} {:>10} {:>9} {:>7}  {}"


def main(argv: Sequence[str] | None = None) -> int:
    """Make the set, measure, print, draw where asked, take everything away."""
    options = _options(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        require_extra("data", "PIL")
        if options.plot:
            require_extra("plot", "matplotlib")
        if len(os.sched_getaffinity(0)) < 2:
            raise UsageError("this process may use one core only; workers are measured on two, give it as many")
        with (
            tempfile.TemporaryDirectory(prefix="placer-data-path-", dir=options.folder) as folder,
            Throttle(Path(folder)) as throttle,
        ):
            outcomes = _outcomes(made(Path(folder), options.samples), throttle, options.every)
        if options.plot:
            draw(outcomes, options.plot)
    except PlacerError as error:
        print(f"examples.data_path.measured: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return _judged(outcomes)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, help="file to draw into: .svg, .png or .pdf")
    parser.add_argument(
        "--folder", type=Path, help="where the set is made, on a disk; the system's for temporary files"
    )
    parser.add_argument("--samples", type=int, default=800, help="of the set, some 500 MB by default")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th path, for a look")
    return parser.parse_args(argv)


def _outcomes(kept: Sequence[Kept], throttle: Throttle, every: int) -> list[Outcome]:
    """Measure the parts, then the paths, telling each."""
    disk = measured_disk(next(one.samples for one in kept if isinstance(one.samples, ShardSet)))
    formats = [measured_format(one) for one in kept]
    _tell_parts(disk, formats)
    paths = grid(formats, disk)[::every]
    print(ROW.format(*COLUMNS, "core +1", ""))
    found = []
    for path in paths:
        one = outcome(path, next(set_ for set_ in kept if set_.name == path.format.name), disk, throttle)
        print(_row(one), flush=True)
        found.append(one)
    return found


def _tell_parts(disk: Disk, formats: Sequence[Format]) -> None:
    print(
        f"disk: {disk.latency_seconds * 1e3:.2f} ms a request, {disk.read_bandwidth / 1e6:.0f} MB/s; "
        f"memory: {disk.memory_bandwidth / 1e9:.1f} GB/s"
    )
    for one in formats:
        print(
            f"{one.name}: {one.samples} samples of {one.stored_bytes / 1e3:.1f} kB, "
            f"{one.core_seconds * 1e3:.3f} ms of a core"
        )


def _row(one: Outcome) -> str:
    gains = one.gains
    storage, worker, core = (
        f"{gains[part]:+.0%}" if part in gains else "-" for part in ("storage", "workers", "cores")
    )
    told = "" if one.right else f"WRONG: {one.real or 'nothing'} binds"
    return ROW.format(
        one.path.format.name, one.path.workers, one.path.cores, one.path.throttle, f"{one.predicted:.0f}",
        f"{one.measured:.0f}", f"{one.error:+.0%}", one.bottleneck, storage, worker, core, told,
    ).rstrip()  # fmt: skip


def _judged(outcomes: Sequence[Outcome]) -> int:
    error, right = mean_error(outcomes), sum(one.right for one in outcomes)
    print(
        f"{len(outcomes)} paths (none within 15% of a tie): mean absolute error {error:.1%}, at most {BOUND:.0%}; "
        f"what binds is what was predicted in {right} of {len(outcomes)}"
    )
    return 0 if error <= BOUND and right == len(outcomes) >= FEWEST else 1


if __name__ == "__main__":
    sys.exit(main())
