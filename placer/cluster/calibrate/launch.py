"""Starts one worker per device, tells progress, collects what the first one prints."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from placer.cluster.calibrate.machine import threads
from placer.cluster.calibrate.result import Calibration
from placer.cluster.calibrate.varying import MeasuredSteps
from placer.errors import ExecutionError

# Starting 8 processes that import torch takes 20 s on 2 cores; measuring itself is bounded by the worker.
LONGEST_SECONDS = 180.0


def measure(
    devices: int, *, on_gpus: bool, progress: Callable[[str], None] | None = None,
    bound: Sequence[tuple[int, ...]] = (),
) -> Calibration:  # fmt: skip
    """What `devices` worker processes measured together, each bound to cores where these are given.

    Raises ExecutionError where one fails.
    """
    begun = time.monotonic()
    measured = Calibration.model_validate_json(_result(devices, on_gpus, progress, bound=bound))
    return measured.model_copy(update={"wall_seconds": time.monotonic() - begun})


def measure_steps(
    devices: int, *, on_gpus: bool, seconds: float, progress: Callable[[str], None] | None = None
) -> MeasuredSteps:
    """How steps of about `seconds` vary on each of `devices` processes. Raises ExecutionError where one fails."""
    return MeasuredSteps.model_validate_json(_result(devices, on_gpus, progress, f"{seconds:g}"))


def _result(
    devices: int, on_gpus: bool, progress: Callable[[str], None] | None, *more: str,
    bound: Sequence[tuple[int, ...]] = (),
) -> str:  # fmt: skip
    """What the first worker printed; more: further arguments of all."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="placer-calibrate-") as folder:
        logs = [Path(folder, f"{rank}.log") for rank in range(devices)]
        workers = [_worker(rank, devices, on_gpus, folder, logs[rank], more) for rank in range(devices)]
        for worker, cores in zip(workers, bound, strict=False):
            os.sched_setaffinity(worker.pid, cores)  # long before it has imported torch, whose threads inherit them
        try:
            result = _follow(workers[0], progress, begun)
            for worker in workers:
                worker.wait(timeout=max(1.0, LONGEST_SECONDS - (time.monotonic() - begun)))
        except subprocess.TimeoutExpired:
            result = ""
        finally:
            _end(workers)
        if not result:
            raise ExecutionError(f"measuring this machine failed: {_reason(workers, logs)}; run placer calibrate again")
    return result


def _worker(
    rank: int, devices: int, on_gpus: bool, folder: str, log: Path, more: tuple[str, ...]
) -> subprocess.Popen[str]:
    """One worker process, this copy of placer on its path."""
    arguments = [str(rank), str(devices), "cuda" if on_gpus else "cpu", folder, *more]
    with log.open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "placer.cluster.calibrate.worker", *arguments],
            env=_environment(devices),
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            text=True,
        )


def _environment(devices: int) -> dict[str, str]:
    count = str(threads(devices))
    # Found, not imported: a worker needs the folder that holds placer, this file needs nothing of its face.
    face = find_spec("placer")
    assert face is not None and face.origin is not None
    path = [str(Path(face.origin).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
    threading = {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}
    return {**os.environ, **threading, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def _follow(worker: subprocess.Popen[str], progress: Callable[[str], None] | None, begun: float) -> str:
    """The result line of the first worker; every other line is progress."""
    lines: IO[str] | None = worker.stdout
    assert lines is not None
    result = ""
    for text in lines:
        kind, _, rest = text.strip().partition(" ")
        if kind == "result":
            result = rest
        elif kind == "progress" and progress is not None:
            progress(f"{rest} ({time.monotonic() - begun:.0f} s)")
    return result


def _end(workers: list[subprocess.Popen[str]]) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.kill()
        worker.wait()
        if worker.stdout is not None:
            worker.stdout.close()


def _reason(workers: list[subprocess.Popen[str]], logs: list[Path]) -> str:
    """The last line of the first worker that failed."""
    for rank, (worker, log) in enumerate(zip(workers, logs, strict=True)):
        said = log.read_text(errors="replace").strip().splitlines()
        if worker.returncode not in (0, None) and said:
            return f"process {rank} ended with {worker.returncode}: {said[-1]}"
    return f"no result within {LONGEST_SECONDS:.0f} s"
