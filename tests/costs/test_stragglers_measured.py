"""The emulated stragglers: what is played of given draws, and that ranks sleep them under every synchrony."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from examples.measured import stragglers
from placer.costs.variability.ranks import RankKind
from placer.costs.variability.step_times import MeasuredTimes
from placer.runtime.data_parallel.synchrony import SYNCHRONOUS, Synchrony

DRAWN = np.array([[1.0, 2.0], [3.0, 1.0], [1.0, 1.0], [1.0, 3.0]])


def local(every: int) -> Synchrony:
    return Synchrony(kind="local", average_every=every, own_loss=True)


def test_what_is_played_of_given_draws() -> None:
    played = {
        SYNCHRONOUS: 2 + 3 + 1 + 3,
        local(2): 4 + 4,
        local(4): 7,
        replace(local(4), own_loss=False): 2 + 3 + 1 + 3,
        Synchrony(kind="stale", staleness=0, own_loss=True): 2 + 3 + 1 + 3,
        # Begun at 0 0, 1 2, 4 3 (the second sum's ranks end at 4 and 3), 5 4: the fourth ends at 6 and 7.
        Synchrony(kind="stale", staleness=1, own_loss=True): 7,
    }
    for kept, seconds in played.items():
        assert stragglers.replayed(DRAWN, kept) == pytest.approx(seconds / len(DRAWN)), kept


def test_predictions_order_the_synchronies_of_each_case() -> None:
    for case in stragglers.emulations():
        synchronous, two, eight, summed, stale, later = (
            stragglers.predicted(case.crowd, kept) for kept in stragglers.KEPT
        )
        assert synchronous == summed > two > eight and synchronous > stale > later * 0.99
        assert case.drawn(5).shape == (5, case.ranks)


@pytest.mark.in_turns
def test_ranks_sleep_what_was_drawn_under_every_synchrony(tmp_path: Path) -> None:
    kinds = tuple(RankKind(name=name, times=MeasuredTimes(atoms=(1e-3, 2e-3))) for name in ("a", "b"))
    case = stragglers.Emulation(name="short", kinds=kinds, rows=(1, 1))
    kept = (SYNCHRONOUS, local(2), Synchrony(kind="stale", staleness=1, own_loss=True))
    found = stragglers.measured(case, 8, kept)
    # Sleeping alone takes as long as the slower rank's draws; more only on a busy machine.
    assert all(one.measured >= float(case.drawn(8).sum(axis=0).max()) / 8 for one in found)
    assert [one.training for one in found] == ["synchronous", "local, every 2", "stale, 1 late"]
    pytest.importorskip("matplotlib", reason="the picture needs placer-planner[plot]")
    stragglers.draw(found, tmp_path / "stragglers.svg")
    assert "<svg" in (tmp_path / "stragglers.svg").read_text()
