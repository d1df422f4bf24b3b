"""What tests share: the folder of reference data beside the checkout, one thread a process, garbage as in a command,
and that no clock decides: on a busy machine everything takes long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from placer.io.processes import collect_seldom
from turns import EVERY, asked_turn, in_turn

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which of the tests that take turns are run."""
    said = "which twelfth of the tests marked in_turns runs, or `every`; the commit's unless files are named"
    parser.addoption("--turn", metavar="N", help=said)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """The turn is settled before processes are started, which are told what files run, not whether they were named."""
    config.option.turn = asked_turn(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests whose turn it is not."""
    if config.option.turn != EVERY:
        items[:], others = in_turn(items, int(config.option.turn))
        config.hook.pytest_deselected(items=others)


def pytest_report_header(config: pytest.Config) -> str:
    """Which turn a run took, to take it again."""
    return f"turn: {config.option.turn}"
