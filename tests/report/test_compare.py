"""`placer compare`: what differs is named, numbers are the plans' own, and what cannot be compared is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_page import EVIL, Page, hostile, pipeline

from commands import Command, command_in
from placer.costs.step_estimate import estimate
from placer.plans.plan import Plan
from placer.report.differences import beside_first, bytes_rows, choices, seconds_rows
from placer.report.printing import seconds_text

pytestmark = pytest.mark.in_turns


def test_what_differs_is_named_and_nothing_else() -> None:
    one = pipeline(microbatches=4)
    other = replace(one, bucket_bytes=one.bucket_bytes * 2)
    assert not any(row.differs for row in choices([one, one]))
    assert [row.name for row in choices([one, other]) if row.differs] == ["bucket"]
    more = pipeline(microbatches=8)
    assert {row.name for row in choices([one, more]) if row.differs} == {"microbatches", "batch rows"}


def test_numbers_are_those_of_the_plans() -> None:
    plans = [pipeline(microbatches=4), pipeline("gpipe", microbatches=4)]
    rows = {row.name: row for row in (*seconds_rows(plans), *bytes_rows(plans))}
    ledgers = [estimate(plan) for plan in plans]
    assert rows["step"].numbers == tuple(ledger.step_seconds for ledger in ledgers)
    assert rows["step"].told == tuple(seconds_text(ledger.step_seconds) for ledger in ledgers)
    assert rows["fullest device"].numbers == tuple(ledger.peak_memory for ledger in ledgers)
    first, second = (ledger.peak_memory for ledger in ledgers)
    assert beside_first(rows["fullest device"], 1) == f"{'+' if second > first else ''}{second / first - 1:.1%}"
    assert beside_first(rows["fullest device"], 0) == ""


def test_a_plan_without_a_prediction_is_compared_by_its_choices() -> None:
    plans = [pipeline(), replace(pipeline(), ledger=None)]
    assert [row.told[1] for row in (*seconds_rows(plans), *bytes_rows(plans))].count("unknown") > 3


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_in(tmp_path, monkeypatch, capsys)


def planned(command: Command, name: str, *more: str) -> None:
    asked = ("plan", "examples.gpt:build", "--cluster", "small.yaml", "--batch", "4x32", *more, "-o", name)
    assert command(*asked).code == 0


def test_two_files_compared(command: Command, tmp_path: Path) -> None:
    planned(command, "a.json", "--strategy", "single")
    planned(command, "b.json", "--pin", "pipeline=2")
    ended = command("compare", "a.json", "b.json", "--json")
    document = json.loads(ended.out)
    a, b = (Plan.load(tmp_path / name) for name in ("a.json", "b.json"))
    assert [one["name"] for one in document["plans"]] == ["a", "b"]
    assert document["plans"][1]["step_time_seconds"] == b.ledger.step_seconds  # type: ignore[union-attr]
    assert ("schedule" in document["differs"]) == (a.schedule != b.schedule)
    assert "stages" in document["differs"]
    said = command("compare", "a.json", "b.json").out
    assert "what differs" in said
    assert seconds_text(a.ledger.step_seconds) in said  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("a.json",), "name two or more"),
        (("a.json", "./a.json"), "named twice"),
        (("a.json", "none.json"), "does not exist"),
        (("a.json", "b.json", "--measure"), "was not measured here"),
    ],
)
def test_what_cannot_be_compared_is_said(command: Command, asked: tuple[str, ...], told: str) -> None:
    planned(command, "a.json", "--strategy", "single")
    planned(command, "b.json", "--strategy", "single")
    ended = command("compare", *asked)
    assert ended.code == 2
    assert told in ended.error


def test_the_page_of_several_keeps_names_as_text() -> None:
    pytest.importorskip("bokeh")
    from placer.report.page.compared import compared_page

    plain = Page(compared_page({"a": hostile("plain"), "b": pipeline()}))
    evil = Page(compared_page({EVIL: hostile(EVIL), "b": pipeline()}))
    assert [tag for tag, _ in evil.tags] == [tag for tag, _ in plain.tags]
    assert "All axes end at" in plain.said
