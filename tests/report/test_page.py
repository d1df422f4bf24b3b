"""The page of a plan: what it shows follows from the plan, it needs no network, and names from outside stay text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from clusters import INSIDE, SLOW, cluster
from commands import Command, command_in
from graphs import BlockSpec, chain_graph
from pipeline_plans import pipeline_plan
from placer.cluster.cluster import Cluster, Link
from placer.costs.step_estimate import estimate
from placer.io.model_shape import Shape
from placer.plans.plan import Alternative, ModelRef, Plan, ScheduleName
from placer.plans.settings import RunSettings
from placer.report.printing import seconds_text
from placer.search.problem import Problem
from placer.search.progress import Progress, SearchLog
from placer.simulator.simulation import simulate
from placer.strategies.baselines.megatron import MegatronDegrees, MegatronLayouts
from placer.tracer.published.models import model_graph
from plans import two_stage_plan

pytest.importorskip("bokeh")

from placer.report.page.devices import traffic
from placer.report.page.measured import MeasuredRun
from placer.report.page.memory import MOST_MOMENTS, BytesOverTime, bytes_over_time, fullest_moments
from placer.report.page.page import report_page
from placer.report.page.steps import MOST_RANKS, drawn_ranks

EVIL = '</script><script>window.hit=1</script><img src=x onerror="window.hit=2">$$\\frac{1}{2}$$'
RUN = MeasuredRun(first_step=0, step_seconds=(0.3, 0.2, 0.1, 0.12), losses=(2.0, 1.5, 1.2, 1.1))
LOG = SearchLog(seconds=2.0, best=((0.5, 3.0), (1.0, 2.0)), bounds=((0.7, 1.0),))


def page_text(plan: Plan, run: MeasuredRun | None = None, log: SearchLog | None = None) -> str:
    return report_page(plan, run, log)


class Page(HTMLParser):
    """Tags of a page, and its text outside of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said = ""
        self._script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._script = self._script and tag not in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._script:
            self.said += data


def pipeline(schedule: ScheduleName = "1f1b", *, microbatches: int = 4, replicas: int = 2, positions: int = 2) -> Plan:
    spec = BlockSpec(flops=10**8, parameters=1_000, output=500)
    turns = 2 if schedule == "interleaved" else 1
    plan = pipeline_plan(
        chain_graph([spec] * (4 * positions)), positions=positions, turns=turns, replicas=replicas,
        microbatches=microbatches, schedule=schedule,
    )  # fmt: skip
    return replace(plan, ledger=estimate(plan))


def hostile(name: str) -> Plan:
    """A plan in which every name is `name`."""
    plan = pipeline()
    classes = tuple(
        replace(kind, ops=tuple(replace(op, name=name, target=name, module=name, source=name) for op in kind.ops))
        for kind in plan.graph.classes
    )
    blocks = tuple(replace(block, name=name) for block in plan.graph.blocks)
    graph = replace(plan.graph, name=name, classes=classes, blocks=blocks, notes=(name,))
    machines = cluster(per_node=4, device=replace(SLOW, name=name), inside=replace(INSIDE, name=name))
    return replace(
        plan, graph=graph, cluster=replace(machines, name=name), strategy=name, assumptions=(name,),
        alternatives=(Alternative(name=name, step_seconds=9.0, reason=name),),
    )  # fmt: skip


@pytest.mark.in_turns
def test_the_page_needs_no_network_and_is_small() -> None:
    text = page_text(pipeline(), RUN, LOG)
    page = Page(text)
    assert len(text.encode()) < 2_500_000
    links = [given[name] for _, given in page.tags for name in ("src", "href") if name in given]
    assert links and all(str(link).startswith("#") for link in links)
    policy = next(given["content"] for _, given in page.tags if given.get("http-equiv") == "Content-Security-Policy")
    assert policy and policy.startswith("default-src 'none'") and "http" not in policy


def test_the_page_says_what_the_plan_says() -> None:
    plan = two_stage_plan()
    said = Page(page_text(replace(plan, ledger=estimate(plan)))).said
    for expected in (plan.graph.name, plan.cluster.name, "gap", *(line for line in plan.assumptions)):
        assert expected in said, expected
    for other in plan.alternatives:
        assert other.name in said
        assert other.reason in said


def test_a_notebook_shows_the_same_without_scripts() -> None:
    ledger = estimate(two_stage_plan())
    plan = replace(two_stage_plan(), ledger=ledger)
    page = Page(plan._repr_html_())
    assert {"script", "style", "img", "link"}.isdisjoint(tag for tag, _ in page.tags)
    assert plan.graph.name in page.said
    assert seconds_text(ledger.step_seconds) in page.said
    evil, plain = Page(hostile(EVIL)._repr_html_()), Page(hostile("plain")._repr_html_())
    assert [tag for tag, _ in evil.tags] == [tag for tag, _ in plain.tags]


@pytest.mark.in_turns
def test_a_run_and_a_search_have_sections_where_they_are_given() -> None:
    plan = pipeline()
    assert "The run" not in Page(page_text(plan)).said
    said = Page(page_text(plan, RUN, LOG)).said
    assert "the median is 110 ms" in said
    assert "2 better plans came up in 2 s" in said


@pytest.mark.in_turns
def test_names_from_outside_make_no_tags() -> None:
    plain, evil = Page(page_text(hostile("plain"))), Page(page_text(hostile(EVIL)))
    assert [tag for tag, _ in evil.tags] == [tag for tag, _ in plain.tags]
    assert not any("onerror" in given for _, given in evil.tags)
    assert len(page_text(hostile("x" * 10_000))) < len(page_text(hostile("plain"))) + 100_000


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize("microbatches", [1, 4, 9])
def test_the_fullest_moment_is_what_the_plan_promises(schedule: ScheduleName, microbatches: int) -> None:
    plan = pipeline(schedule, microbatches=microbatches)
    found = list(bytes_over_time(plan, simulate(plan)))
    assert [one.highest for one in found] == [memory.total for memory in estimate(plan).memory]


def test_of_several_stages_on_a_device_it_is_never_more() -> None:
    plan = pipeline("interleaved", microbatches=4)
    for one, memory in zip(bytes_over_time(plan, simulate(plan)), estimate(plan).memory, strict=True):
        assert 0.8 * memory.total < one.highest <= memory.total


def test_few_moments_are_drawn_and_the_fullest_is_among_them() -> None:
    sizes = tuple((7 * at) % 5_003 for at in range(5_000))
    found = BytesOverTime(device=0, times=tuple(map(float, range(5_000))), held={"activations": sizes})
    chosen = fullest_moments(found)
    assert len(chosen) <= MOST_MOMENTS + 1
    assert max(sizes[at] for at in chosen) == max(sizes)


def test_traffic_is_what_the_ledger_says() -> None:
    plan = pipeline(replicas=1)
    found = traffic(plan)
    assert found.whole
    assert sum(found.messages.values()) == estimate(plan).sent_bytes
    assert set(found.messages) == {(0, 1), (1, 0)}


@pytest.mark.in_turns
def test_what_devices_of_a_replica_say_to_each_other_is_told_in_every_column() -> None:
    """A model cut by Megatron's rule: bytes and seconds of a microbatch, those of the estimate."""
    shape = Shape(
        kind="gpt", layers=2, hidden=64, heads=4, key_heads=4, inner=256, vocabulary=512, sequence=32
    )  # fmt: skip
    model = ModelRef(kind="config", reference="", fingerprint="")
    machines, settings = Cluster.load("a100x8"), RunSettings(precision="bfloat16")
    problem = Problem(graph=model_graph(shape), cluster=machines, settings=settings, model=model, rows=8)
    plan = MegatronLayouts(problem).plan(MegatronDegrees(tensor=4, data=2, rows=2))
    (told,) = re.findall("<summary>Within replicas</summary>(.*?)</details>", page_text(plan), re.DOTALL)
    cells = re.findall("<td[^>]*>(.*?)</td>", told)
    assert told.count("<th ") == len(cells) == 5
    free = Link(name="free", latency_seconds=0.0, bandwidth=1e30)
    fast = replace(machines, groups=tuple((replace(node, link=free), count) for node, count in machines.groups))
    slow, alone = (estimate(replace(plan, cluster=own)).seconds for own in (machines, fast))
    spent = (slow.forward + slow.backward - alone.forward - alone.backward) / len(plan.microbatches)
    assert cells[4] == seconds_text(spent)


def test_ranks_of_every_position_are_drawn_first() -> None:
    plan = pipeline(positions=6, replicas=1, microbatches=2)
    assert drawn_ranks(plan, simulate(plan)) == (0, 1, 2, 3, 4, 5)
    many = pipeline(positions=60, replicas=1, microbatches=2)
    drawn = drawn_ranks(many, simulate(many))
    assert len(drawn) == MOST_RANKS
    assert len(set(drawn)) == MOST_RANKS


def test_a_log_keeps_what_was_heard(tmp_path: Path) -> None:
    progress = Progress()
    for seconds in (3.0, 4.0, 2.0):
        progress.found(seconds)
    progress.bounded(1.0)
    progress.bounded(1.0)
    log = progress.log()
    assert [value for _, value in log.best] == [3.0, 2.0]
    assert [value for _, value in log.bounds] == [1.0]
    log.save(tmp_path / "log.json")
    assert SearchLog.load(tmp_path / "log.json") == log


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_in(tmp_path, monkeypatch, capsys)


@pytest.mark.in_turns
def test_plan_then_report(command: Command, tmp_path: Path) -> None:
    planned = command(
        "plan",
        "examples.gpt:build",
        "--cluster",
        "small.yaml",
        "--batch",
        "4x32",
        "--search-log",
        "s.json",
        "-o",
        "p.json",
    )
    assert planned.code == 0
    (tmp_path / "log.jsonl").write_text(
        "".join(
            json.dumps({"event": "step", "step": at + 1, "loss": 2.0, "step_seconds": 0.1}) + "\n" for at in range(3)
        )
        + '{"event": "step", "st'
    )
    ended = command("report", "p.json", "--run", "log.jsonl", "--search", "s.json", "-o", "r.html", "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["bytes"] == (tmp_path / "r.html").stat().st_size
    said = Page((tmp_path / "r.html").read_text()).said
    assert "3 steps; the median is 100 ms" in said


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("flag", "content", "told"),
    [
        ("--run", "{}", "neither the report nor the log of a run"),
        ("--run", '{"event": "step", "step": 1}\n', "no steps with their step, loss and step_seconds"),
        ("--run", '{"event": "step", "step": 1, "loss": 1.0, "step_seconds": 1.0}\nno\n{}\n', "line 2 is no JSON"),
        ("--search", "[]", "is not the log of a search"),
        ("--search", '{"seconds": -1, "best": []}', "is not the log of a search"),
    ],
)
def test_what_is_no_run_and_no_log_is_said(
    command: Command, tmp_path: Path, flag: str, content: str, told: str
) -> None:
    two_stage_plan().save(tmp_path / "p.json")
    (tmp_path / "wrong").write_text(content)
    assert (
        command(
            "plan",
            "examples.gpt:build",
            "--cluster",
            "small.yaml",
            "--batch",
            "4x32",
            "--strategy",
            "single",
            "-o",
            "p.json",
        ).code
        == 0
    )
    ended = command("report", "p.json", flag, "wrong", "-o", "r.html")
    assert ended.code == 2
    assert told in ended.error
    assert not (tmp_path / "r.html").exists()
