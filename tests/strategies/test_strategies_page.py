"""The page of a comparison: it stands alone, and names from outside stay text."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from placer.report.strategies.measured import MeasuredPlan, beside_fastest
from placer.report.strategies.page import strategies_page
from placer.report.strategies.table import strategies_markdown
from placer.search.comparison import Outcome, kept_outcomes
from placer.search.standings import proven_seconds, standings, time_within

pytest.importorskip("bokeh")

CHECKOUT = Path(__file__).resolve().parents[2]

EVIL = '</script><script>window.hit=1</script><img src=x onerror="window.hit=2">'


def outcome(strategy: str, case: str, *curve: tuple[float, float], bound: float | None = None) -> Outcome:
    """One made up, whose last point is its plan."""
    return Outcome(
        case=case, strategy=strategy, seed=0, budget="5s", step_time_seconds=curve[-1][1] if curve else None,
        bound_seconds=bound, evaluations=3, search_time_seconds=5.0, kind="equal", curve=curve,
    )  # fmt: skip


MADE = [
    outcome("slow", "a", (1.0, 3.0), (4.0, 1.04)),
    outcome("quick", "a", (0.5, 2.0), (0.9, 1.0), bound=0.8),
    outcome("narrow", "a", (0.1, 1.5), bound=1.4),  # of its own kind of plans only
    outcome(EVIL, EVIL, (0.5, 2.0)),
    outcome("slow", EVIL),
]


class Page(HTMLParser):
    """Tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_needs_no_network_and_is_small() -> None:
    text = strategies_page(MADE)
    page = Page(text)
    assert len(text.encode()) < 5_000_000
    assert not [found for _, given in page.tags for found in ("src", "href") if found in given]
    assert {tag for tag, _ in page.tags} >= {"html", "script", "div"}


def test_of_problems_that_nobody_has_a_plan_of_there_is_a_page() -> None:
    none = [outcome("slow", "a"), replace(outcome("quick", "a"), bound_seconds=1.0)]
    assert "slow" in strategies_page(none)
    assert proven_seconds(none) == {"a": 1.0}


def test_names_from_outside_make_no_tags() -> None:
    hostile, plain = Page(strategies_page(MADE)), Page(strategies_page([one for one in MADE if EVIL not in one.case]))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    assert not any("onerror" in given for _, given in hostile.tags)


def test_how_soon_a_search_is_how_near() -> None:
    assert time_within(MADE[0], 1.0, 0.05) == 4.0
    assert time_within(MADE[0], 1.0, 0.01) is None
    slow, quick = (next(own for own in standings(MADE) if own.strategy == name) for name in ("slow", "quick"))
    assert (slow.near_seconds, slow.nearer_seconds) == (4.0, None)
    assert (quick.near_seconds, quick.nearer_seconds, quick.median_gap) == (0.9, 0.9, 0.0)


def test_a_bound_above_a_known_plan_is_not_of_all_plans() -> None:
    assert proven_seconds(MADE) == {"a": 0.8}
    assert next(own for own in standings(MADE) if own.strategy == "quick").median_open == pytest.approx(1 / 0.8 - 1)


def test_measured_plans_stand_beside_their_prediction_and_the_best_predicted_one() -> None:
    one = MeasuredPlan(case="a", strategies=("auto",), predicted_seconds=1.0, measured_seconds=(2.0, 2.2, 2.1))
    other = MeasuredPlan(case="a", strategies=("data",), predicted_seconds=3.0, measured_seconds=(1.0, 1.1, 1.05))
    (_, chosen), (_, slower) = beside_fastest([one, other])
    assert one.off.value == pytest.approx(2.1 / 1.0)
    assert (chosen.value, chosen.low, chosen.high) == (1.0, 1.0, 1.0)
    assert slower.value == pytest.approx(1.05 / 2.1)
    assert other.off.low < 1.05 / 3.0 < other.off.high


def test_the_picture_names_every_strategy_and_is_the_same_again() -> None:
    pytest.importorskip("matplotlib")
    from placer.report.strategies.plot import strategies_plot  # an extra

    drawn = strategies_plot(MADE, "svg")
    assert drawn == strategies_plot(MADE, "svg")
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert all(f"<!-- {name} -->".encode() in drawn for name in ("slow", "quick", "narrow"))


def test_the_tables_of_the_readmes_are_what_the_kept_outcomes_give() -> None:
    kept = strategies_markdown(kept_outcomes(CHECKOUT / "examples/measured/results/strategies.jsonl")).splitlines()
    for readme, least in (("README.md", 6), ("examples/measured/README.md", 18)):
        rows = [line for line in (CHECKOUT / readme).read_text().splitlines() if " of 72 |" in line]
        assert len(rows) >= least and set(rows) <= set(kept)
