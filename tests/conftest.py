"""What tests share: the folder of reference data beside the checkout, one thread a process, garbage as in a command,
and that no clock decides: on a busy machine everything takes long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from placer.io.processes import collect_seldom

# Ranks and the tests share few cores; several threads per process make everything slower, not faster.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

collect_seldom()

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the checkout; tests that need it skip where it is missing."""
    folder = Path(os.environ.get("PLACER_SHARED", CHECKOUT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"the reference data {folder} is not on this machine")
    return folder


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the source tree."""
    return CHECKOUT
