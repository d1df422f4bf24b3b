"""Runs of the real loader over a set that no cache holds, with a path's throttle, workers and cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from itertools import islice
from multiprocessing.connection import Connection

from examples.data_path.measured.parts import Disk
from examples.data_path.measured.paths import Part, Path, bottleneck, predicted
from examples.data_path.measured.samples import Kept
from examples.data_path.measured.throttle import Throttle
from examples.data_path.measured.verdict import Outcome
from placer.errors import ExecutionError
from placer.runtime.data.shards import ShardLoader
from placer.runtime.data.shards.measuring import PIXELS, Decoding
from placer.runtime.data.shards.order import Place

# The set is handed over as it is, and torch is not imported again for each pass.
FORKED = multiprocessing.get_context("fork")
ROWS = 16
# Small against the set, as the loader's own window is against a set that no memory holds.
WINDOW = 32


def outcome(path: Path, kept: Kept, disk: Disk, throttle: Throttle) -> Outcome:
    """Predict a path, measure it, and measure it with each part relieved that can be."""
    found = predicted(path, disk)
    return Outcome(
        path=path,
        predicted=found.samples_per_second,
        bottleneck=bottleneck(found),
        measured=loader_rate(path, kept, throttle),
        relieved=tuple((part, loader_rate(path.relieved(part), kept, throttle)) for part in reliefs(path)),
    )


def reliefs(path: Path) -> tuple[Part, ...]:
    """What can be relieved here: storage and workers ever, cores where there are more."""
    return ("storage", "workers", "cores") if path.cores < len(os.sched_getaffinity(0)) else ("storage", "workers")


def loader_rate(path: Path, kept: Kept, throttle: Throttle) -> float:
    """Samples a second of one pass over the set, from the first request to the last sample, by a process of its own.

    Raises ExecutionError where that process fails.
    """
    kept.samples.drop([Place(shard, 0) for shard in range(len(kept.samples.counts))])
    throttle.limit(bytes_per_second=path.bytes_per_second or 0.0, requests_per_second=path.requests_per_second or 0.0)
    receiver, sender = FORKED.Pipe(duplex=False)
    process = FORKED.Process(target=_load, args=(path, kept, throttle, sender))
    process.start()
    sender.close()
    try:
        rate: float = receiver.recv()
    except EOFError:
        raise ExecutionError("the process that loads ended without a result; what it printed says why") from None
    finally:
        process.kill()
        process.join()
        throttle.limit()
    return rate


def _load(path: Path, kept: Kept, throttle: Throttle, sender: Connection) -> None:
    """One pass, throttled, on the cores of the path; whoever started this process ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: path.cores])
    throttle.join()
    # Of more workers than cores, which are tried on purpose.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    batches = path.format.samples // ROWS
    loader = ShardLoader(kept.samples, Decoding(PIXELS), rows=ROWS, workers=path.workers, window=WINDOW)
    began = time.perf_counter()
    for _ in islice(loader, batches):
        pass
    sender.send(batches * ROWS / (time.perf_counter() - began))
