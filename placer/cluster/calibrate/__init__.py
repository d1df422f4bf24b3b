"""This machine, measured: a Cluster whose devices are its GPUs, or processes that share its cores.

    local_cluster(n)   from the cache, measured when there is none for this machine, or one taken while it was busy
    calibrate(n)       measured now, the cache renewed
    varying_steps(n, seconds)  how much equal steps vary, measured now
    describe_machine() what this machine is and what is installed, for `doctor`

Measuring happens in fresh processes (`worker`), one per device, all at once; only they import torch. Calibrations are
kept in the user's cache folder as cluster files, one per machine fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from placer.cluster.calibrate.launch import measure, measure_steps
from placer.cluster.calibrate.machine import Machine, busy_cores, describe_machine, fingerprint, visible_gpus
from placer.cluster.calibrate.result import idle, local_description
from placer.cluster.calibrate.varying import MeasuredSteps
from placer.cluster.cluster import Cluster
from placer.cluster.cluster_file import cluster_yaml, read_cluster
from placer.errors import UsageError
from placer.io.cache import cache_folder
from placer.io.files import write_text

__all__ = ["Machine", "calibrate", "describe_machine", "local_cluster", "varying_steps"]

# More processes than this on one machine is a mistake in the spec, not a wish.
MOST_PROCESSES = 256


def local_cluster(devices: int | None = None, progress: Callable[[str], None] | None = None) -> Cluster:
    """This machine as `devices` devices (None: its GPUs, or one process), from the cache where it is there."""
    return calibrate(devices, refresh=False, progress=progress)


def calibrate(
    devices: int | None = None, refresh: bool = True, progress: Callable[[str], None] | None = None,
    bound: Sequence[tuple[int, ...]] = (),
) -> Cluster:  # fmt: skip
    """This machine as `devices` devices, measured with all of them at work at once; under a minute.

    bound: the cores of each process, where it is bound to some; such a calibration is not kept.
    `progress` is told what is being measured. Raises UsageError for an impossible number of devices, ExecutionError
    where measuring fails.
    """
    count, on_gpus = _devices(devices)
    key = fingerprint(count)
    known = None if refresh or bound else cached(key, count)
    name = "local" if devices is None else f"localx{count}"
    if bound and len(bound) != count:
        raise UsageError(f"{count} processes were asked for and cores of {len(bound)}; give each process its own")
    load = busy_cores()
    if known is not None and not (known.doubts and idle(load)):
        return replace(known, name=name)
    measured = measure(count, on_gpus=on_gpus, progress=progress, bound=bound)
    cluster = local_description(measured, name=name, load=load, own_cores=min(map(len, bound), default=0))
    if not bound:
        store(key, cluster)
    return cluster


def varying_steps(devices: int | None, seconds: float, progress: Callable[[str], None] | None = None) -> MeasuredSteps:
    """How steps of about `seconds` vary on this machine as `devices` devices, all at work at once; measured now."""
    count, on_gpus = _devices(devices)
    return measure_steps(count, on_gpus=on_gpus, seconds=seconds, progress=progress)


def _devices(asked: int | None) -> tuple[int, bool]:
    """How many devices to measure, and whether they are GPUs. Raises UsageError for an impossible number."""
    gpus = visible_gpus()
    count = asked if asked is not None else max(1, gpus)
    if not 1 <= count <= MOST_PROCESSES:
        raise UsageError(f"localx{count} asks for {count} devices; ask for 1 to {MOST_PROCESSES}, as in localx2")
    return count, 0 < count <= gpus


def cache_path(key: str) -> Path:
    """The calibration file of a fingerprint."""
    return cache_folder() / f"calibration-{key}.yaml"


def cached(key: str, devices: int) -> Cluster | None:
    """The calibration of a fingerprint; None where there is none or it cannot be trusted."""
    path = cache_path(key)
    if not path.is_file():
        return None
    try:
        cluster = read_cluster(str(path))
    except UsageError:
        return None
    return cluster if cluster.measured and cluster.size == devices else None


def store(key: str, cluster: Cluster) -> None:
    """Keep a calibration, whole or not at all; a cache that cannot be written costs only time."""
    path = cache_path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, cluster_yaml(cluster))
    except OSError:
        return
