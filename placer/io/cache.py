"""Where what can be made again is kept between runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The user's folder of placer's caches: in XDG_CACHE_HOME, or the platform's own place."""
    asked = os.environ.get("XDG_CACHE_HOME", "")
    if Path(asked).is_absolute():
        return Path(asked) / "placer"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "placer"
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "placer" / "cache"
    return Path.home() / ".cache" / "placer"
