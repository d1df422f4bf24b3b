"""Calibrations kept in the user's cache folder as cluster files, one per machine fingerprint."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from placer.cluster.cluster import Cluster
from placer.cluster.cluster_file import cluster_yaml, read_cluster
from placer.errors import UsageError
from placer.io.files import write_text


def cache_folder() -> Path:
    """Where calibrations lie: XDG_CACHE_HOME, or the platform's own place."""
    asked = os.environ.get("XDG_CACHE_HOME", "")
    if Path(asked).is_absolute():
        return Path(asked) / "placer"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "placer"
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "placer" / "cache"
    return Path.home() / ".cache" / "placer"


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
