"""Which machines to rent: each answer is that of a plan of its own; the front and the cheapest are those by hand."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from graphs import gpt_graph
from placer.cli import app
from placer.cluster.cluster import Cluster
from placer.cluster.prices import Offer, read_offers
from placer.errors import UsageError
from placer.io.units import duration
from placer.plans.plan import ModelRef
from placer.plans.settings import RunSettings
from placer.search.judge import solve_with
from placer.search.problem import Pins, Problem
from placer.strategies.advise.machines import Answer, Work, advised, cheapest, front

ONE = Cluster.load("t4")
LIST = "machines:\n  small: {cluster: t4x2@100gbe, dollars_per_hour: 2, counts: [1, 2]}\n"
LIST += "  large: {cluster: h100x2, dollars_per_hour: 9}\n"


def problem(**changes: object) -> Problem:
    made = Problem(
        graph=gpt_graph(layers=2), cluster=ONE, settings=RunSettings(), rows=8,
        model=ModelRef(kind="module", reference="gpt", fingerprint="0"),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def offers(tmp_path: Path) -> tuple[Offer, ...]:
    path = tmp_path / "prices.yaml"
    path.write_text(LIST)
    return read_offers(str(path))


def answer(seconds: float, dollars: float, units: int = 1000) -> Answer:
    offer = Offer(machine="made", count=1, cluster=ONE, dollars_per_hour=dollars)
    return Answer(offer=offer, units_per_step=units, step_seconds=seconds)


def test_each_answer_is_that_of_a_search_of_its_own(offers: tuple[Offer, ...]) -> None:
    found = advised(problem(), offers)
    assert [(one.offer.machine, one.offer.count, one.offer.cluster.size) for one in found] == [
        ("small", 1, 2), ("small", 2, 4), ("large", 1, 2),
    ]  # fmt: skip
    for one in found:
        alone = solve_with(problem(cluster=one.offer.cluster), "auto").plan
        assert alone.ledger is not None
        assert (one.step_seconds, one.bound) == (alone.ledger.step_seconds, alone.bound)
        assert one.units_per_second == 8 * 32 / alone.ledger.step_seconds


def test_answers_come_in_the_order_of_the_list_whichever_are_asked_about_first(offers: tuple[Offer, ...]) -> None:
    small, pair, large = offers
    asked = (small, large, replace(pair, machine="last"))
    assert [one.offer for one in advised(problem(), asked, "data")] == list(asked)


def test_machines_of_alike_nodes_share_layouts_and_have_the_plans_of_searches_of_their_own() -> None:
    asked, known = problem(), 0
    for name in ("h100x4@100gbe", "h100x4@p5", "h100x4*2@100gbe", "h100x4*2@p5"):
        on = Cluster.load(name)
        shared = solve_with(replace(asked, cluster=on), "stages").plan
        assert shared == solve_with(problem(cluster=on), "stages").plan
        if name.endswith("@p5"):  # the network between nodes changes nothing within one
            assert len(asked.known_layouts) == known > 0
        known = len(asked.known_layouts)


def test_layouts_are_those_of_the_node_and_the_settings(offers: tuple[Offer, ...]) -> None:
    asked = problem(cluster=Cluster.load("h100x4"))
    solve_with(asked, "stages")
    first = len(asked.known_layouts)
    for other in (
        replace(asked, cluster=Cluster.load("t4x4")),
        replace(asked, settings=RunSettings(precision="bfloat16")),
        replace(asked, graph=gpt_graph(layers=2, hidden=64)),
    ):
        solved = solve_with(other, "stages").plan
        assert solved == solve_with(replace(other, known_layouts={}), "stages").plan
    assert len(asked.known_layouts) == 4 * first


def test_what_cannot_honour_a_pin_says_so_beside_what_can(offers: tuple[Offer, ...]) -> None:
    found = advised(problem(pins=Pins(data=4)), offers)
    assert [one.step_seconds is not None for one in found] == [False, True, False]
    assert all(one.reason for one in found if one.step_seconds is None)


def test_what_does_not_fit_says_what_binds(offers: tuple[Offer, ...]) -> None:
    wide = gpt_graph(layers=2, hidden=2**15, vocabulary=2**17)
    (one,) = advised(problem(graph=wide), offers[:1])
    assert one.step_seconds is None and "GiB" in one.reason


def test_what_a_deadline_leaves_out_could_not_meet_it(offers: tuple[Offer, ...]) -> None:
    every = advised(problem(), offers)
    for deadline in (1e-12, 1e-6, 1e-4, 1.0):
        work = Work(units=8 * 32 * 50, deadline=deadline)
        for one, whole in zip(advised(problem(), offers, work=work), every, strict=True):
            assert whole.step_seconds is not None
            assert not (one.late and 50 * whole.step_seconds <= deadline)
            assert one.late or one.step_seconds == whole.step_seconds
    assert all(one.late for one in advised(problem(), offers, work=Work(units=1e9, deadline=1e-6)))


def test_a_deadline_that_products_in_tensor_float_meet_is_met() -> None:
    """Of large ones, with which a step is shorter than at the peak of float32."""
    graph = gpt_graph(layers=1, hidden=8192, heads=64, sequence=2048, vocabulary=1000)
    offer = Offer(machine="one", count=1, cluster=Cluster.load("h100x1"), dollars_per_hour=1.0)
    asked = problem(graph=graph, settings=RunSettings(tf32=True), pins=Pins(data=1))
    (free,) = advised(asked, (offer,))
    assert free.step_seconds is not None
    flops = graph.forward_flops + graph.backward_flops
    assert free.step_seconds < flops / offer.cluster.devices[0].rate("float32")
    (bound,) = advised(asked, (offer,), work=Work(units=8 * 2048, deadline=free.step_seconds))
    assert not bound.late


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=9))
def test_the_front_is_what_nothing_else_beats(made: list[tuple[int, int]]) -> None:
    answers = [answer(seconds, dollars / seconds) for seconds, dollars in made]
    values = [(one.step_seconds, one.dollars_per_million) for one in answers]

    def beaten(mine: tuple[float | None, float | None]) -> bool:
        return any(o != mine and all(a <= b for a, b in zip(o, mine, strict=True)) for o in values)  # type: ignore[operator]

    assert {id(one) for one in front(answers)} == {
        id(one) for one, value in zip(answers, values, strict=True) if not beaten(value)
    }


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=6), st.integers(1, 90))
def test_the_cheapest_meets_the_deadline_and_nothing_cheaper_does(made: list[tuple[int, int]], limit: int) -> None:
    answers = [answer(float(seconds), 3600.0 * dollars) for seconds, dollars in made]
    best = cheapest(answers, Work(units=9500, deadline=float(limit)))  # 10 steps of 1000
    costs = [10 * seconds * dollars for seconds, dollars in made if 10 * seconds <= limit]
    assert (best is None) == (not costs)
    if best is not None:
        assert best.dollars(9500) == min(costs) and best.seconds(9500) <= limit  # type: ignore[operator]


def test_the_catalogue_says_of_every_price_where_and_when_it_was_read() -> None:
    offers = read_offers(None)
    assert len({offer.machine for offer in offers}) >= 12
    for offer in offers:
        assert offer.source and len(offer.date) == len("2026-11-09")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("machines: {}", "machines"),
        ("machines:\n  a: {cluster: t4, dollars_per_hour: 0}", "line 2"),
        ("machines:\n  a: {cluster: t4, dollars_per_hour: 1, price: 2}", "price"),
        ("machines:\n  a: {cluster: nothing, dollars_per_hour: 1}", "nothing"),
        ("machines:\n  a: {cluster: t4, dollars_per_hour: 1, counts: [2]}", "network"),
        ("machines:\n  a: {cluster: one.yaml, dollars_per_hour: 1, counts: [2]}", "{count}"),
        ("[]", "expected fields"),
    ],
)
def test_a_wrong_price_list_is_refused_in_words(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=told):
        read_offers(str(path))


def test_machines_that_nothing_joins_are_left_out_where_counts_are_asked_of_all() -> None:
    told: list[str] = []
    offers = read_offers(None, counts=(2,), left_out=told.append)
    assert {offer.count for offer in offers} == {2} and len(offers) >= 12
    assert told and all("left out" in why and "network" in why for why in told)
    named = re.search(r"2 x ([^:]+):", told[0])
    assert named is not None
    lone = named[1]
    assert lone not in {offer.machine for offer in offers}
    with pytest.raises(UsageError, match="network"):
        read_offers(None, counts=(2,), machines=(lone,), left_out=told.append)


def test_files_of_clusters_are_found_beside_the_list(tmp_path: Path) -> None:
    nodes = (
        "name: ours\ndevices: {t4: {use: t4}}\nnodes:\n  - {count: 1, devices: [{kind: t4, count: %d}], link: pcie3}\n"
    )
    for count, size in product((1, 2), (1,)):
        (tmp_path / f"n{count}.yaml").write_text(nodes % (2 * count * size))
    (tmp_path / "prices.yaml").write_text(
        "machines:\n  a: {cluster: 'n{count}.yaml', dollars_per_hour: 1, counts: [1, 2]}"
    )
    assert [offer.cluster.size for offer in read_offers(str(tmp_path / "prices.yaml"))] == [2, 4]


@pytest.mark.in_turns
@pytest.mark.parametrize(("text", "seconds"), [("90min", 5400), ("24h", 86400), ("3d", 259200), ("30 s", 30)])
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1h", "0h", "3 weeks", "nan h", "24"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no time"):
        duration(text)


@pytest.mark.in_turns
def test_the_command_prints_answers_and_writes_them_as_lines(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(LIST)
    file = tmp_path / "answers.csv"
    command = ["advise", "examples.models:tiny_llama", "--machines", str(tmp_path / "prices.yaml"), "--batch", "8x32"]
    ended = CliRunner().invoke(app, [*command, "--strategy", "data", "--tokens", "1e6", "--csv", str(file), "--json"])
    document = json.loads(ended.stdout)
    assert document["unit"] == "tokens" and document["cheapest"] in document["front"]
    lines = list(csv.DictReader(io.StringIO(file.read_text())))
    assert [line["machine"] for line in lines] == ["small", "small", "large"]
    assert [float(line["work_dollars"]) for line in lines] == [one["work_dollars"] for one in document["answers"]]


def test_the_rows_of_the_command_are_those_of_placer_plan(tmp_path: Path) -> None:
    slow = "{cluster: t4x2@1gbe, dollars_per_hour: 1, counts: [1, 2]}"
    (tmp_path / "prices.yaml").write_text(LIST.replace("cluster: t4x2", "cluster: t4x4") + f"  slow: {slow}\n")
    asked = ["examples.models:tiny_llama", "--batch", "64x32", "--json"]
    advice = CliRunner().invoke(app, ["advise", *asked, "--machines", str(tmp_path / "prices.yaml")])
    rows = json.loads(advice.stdout)["answers"]
    assert len(rows) == 5
    for row in rows:
        planned = json.loads(CliRunner().invoke(app, ["plan", *asked, "--cluster", row["cluster"]]).stdout)
        for name in ("step_time_seconds", "bound_seconds", "peak_memory_bytes"):
            assert row[name] == planned[name]


def test_a_deadline_without_work_is_misuse() -> None:
    ended = CliRunner().invoke(app, ["advise", "examples.gpt:build", "--deadline", "24h"])
    assert isinstance(ended.exception, UsageError) and "--tokens" in str(ended.exception)


@pytest.mark.in_turns
@pytest.mark.parametrize(("words", "code"), [
    (("--tokens", "1e6"), 0), (("--tokens", "1e18", "--deadline", "1h"), 1), (("--pin", "data=7"), 1),
])  # fmt: skip
def test_where_no_machine_does_it_the_command_says_so_by_its_exit_code(
    tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    (tmp_path / "prices.yaml").write_text(LIST)
    asked = ["advise", "examples.models:tiny_llama", "--machines", str(tmp_path / "prices.yaml"), "--batch", "8x32"]
    ended = CliRunner().invoke(app, [*asked, "--strategy", "data", *words, "--json"])
    assert ended.exit_code == code
    assert len(json.loads(ended.stdout)["answers"]) == 3
