"""Rows of `placer bench placement`: for each family of published problems our results beside what is published.

A family yields each row as soon as it is solved, and nothing where its folder is missing.

- dnn-partitioning: every input under throughput-inputs is placed contiguously, those with a published free-form optimum
  in free form too; every input under latency-inputs for latency. Inputs of which nothing is published are placed too.
- doppler: every graph on 4 equal devices, for the finish time, beside what others reached by the same rules.
- profiles (PipeDream, DAPPLE) name no machines, so the setting is ours: 4 devices (or as many as the authors' plan in
  the file has stages) joined by 10 GB/s, memory without limit. Where the file holds the authors' own stages, their
  largest load by the same evaluator stands beside ours, their replication left aside.
- piper: every published setting whose graph is there, beside its best known value.
- aceso: the published plan and ours by one evaluator under one memory limit.
- galvatron: its two published searches as seconds per step, which is what is bounded from below.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from placer.errors import Infeasible, InfeasibleError
from placer.placement.answers import PlaceAnswer
from placer.placement.benchmark import BenchRow, Published, PublishedResult, published
from placer.placement.evaluator import largest_load
from placer.placement.formats import PlaceRequest, pipedream, read_problem
from placer.placement.formats.piper import read_piper
from placer.placement.legality import Form
from placer.placement.problem import PlacementProblem
from placer.placement.published_planners import aceso_cases, galvatron_cases
from placer.placement.published_planners.aceso import step_of
from placer.placement.published_planners.galvatron import value_of
from placer.placement.published_planners.piper import (
    PUBLISHED_BANDWIDTH,
    PUBLISHED_UNITS,
    PiperSetting,
    published_settings,
)
from placer.strategies.placement.aceso.search import solve_aceso
from placer.strategies.placement.galvatron import solve_galvatron
from placer.strategies.placement.piper.search import solve_piper
from placer.strategies.placement.solve import solve

REQUESTS: dict[Form, PlaceRequest] = {
    "contiguous": PlaceRequest(),
    "free": PlaceRequest(free_form=True),
    "latency": PlaceRequest(objective="latency"),
    "makespan": PlaceRequest(objective="makespan"),
}
# Bytes per second between the devices of a profile.
PROFILE_BANDWIDTH = 1e10


def dnn_rows(data: Path) -> Iterator[BenchRow]:
    """A row for every input and form."""
    folder = data / "dnn-partitioning"
    for path in sorted(folder.glob("throughput-inputs/*/*.json")):
        yield dnn_row(path, "contiguous")
        if published(folder.name, path.stem, "free"):
            yield dnn_row(path, "free")
    for path in sorted(folder.glob("latency-inputs/*/*.json")):
        yield dnn_row(path, "latency")


def dnn_row(path: Path, form: Form) -> BenchRow:
    """One input in one form."""
    family = "dnn-partitioning"
    problem = read_problem(path, REQUESTS[form], format=family)
    known = published(family, path.stem, form) or PublishedResult()
    best, kind = known.known
    try:
        answer: PlaceAnswer | None = solve(problem, REQUESTS[form])
        note = "; ".join(answer.notes) if answer else ""
    except InfeasibleError as error:
        answer, note = None, str(error)
    return BenchRow(
        family=family, problem=f"{path.parent.name}/{path.stem}", setting=form,
        value=answer.objective if answer else None, unit=answer.unit if answer else "ms",
        known=best, known_kind=kind, bound=answer.bound if answer else None,
        seconds=answer.seconds if answer else 0.0, published=known.published, note=note,
    )  # fmt: skip


def doppler_rows(data: Path) -> Iterator[BenchRow]:
    """A row for every graph."""
    for path in sorted((data / "doppler").glob("*.txt")):
        problem, known = read_problem(path, REQUESTS["makespan"], format="doppler"), _known_makespan(path.stem)
        answer = solve(problem, REQUESTS["makespan"])
        best, kind = known.known
        yield BenchRow(
            family="doppler", problem=path.stem, setting="4 devices, first come first served", value=answer.objective,
            unit=answer.unit, known=best, known_kind=kind, bound=answer.bound, seconds=answer.seconds,
            published=known.published, note="; ".join(answer.notes),
        )  # fmt: skip


def _known_makespan(name: str) -> PublishedResult:
    return published("doppler", name, "makespan") or PublishedResult()


def profiles_rows(data: Path) -> Iterator[BenchRow]:
    """A row for every profile."""
    for path in sorted(path for folder in ("pipedream", "dapple") for path in (data / folder).glob("**/*.txt")):
        text = path.read_text()
        if "forward_compute_time=" in text:
            name = path.parent.name if path.name == "graph.txt" else path.stem
            yield profile_row(text, f"{path.relative_to(data).parts[0]}/{name}")


def profile_row(text: str, name: str) -> BenchRow:
    """One profile."""
    stages = pipedream.stages_of(text)
    devices = len(set(stages.values())) or pipedream.DEVICES
    request = PlaceRequest(devices=devices, bandwidth=PROFILE_BANDWIDTH)
    problem = pipedream.read(text, name, request)
    answer = solve(problem, request)
    return BenchRow(
        family="profiles", problem=name, setting=f"{devices} devices, {PROFILE_BANDWIDTH / 1e9:g} GB/s, contiguous",
        value=answer.objective, unit=answer.unit, bound=answer.bound, seconds=answer.seconds,
        published=_authors(problem, stages), note="; ".join(answer.notes),
    )  # fmt: skip


def _authors(problem: PlacementProblem, stages: dict[str, int]) -> tuple[Published, ...]:
    """What the authors' stages reach."""
    if not stages:
        return ()
    numbers = sorted(set(stages.values()))
    placement = tuple(numbers.index(stages[node.name]) for node in problem.nodes)
    return (("authors' stages, one device each", largest_load(problem, placement), None),)


def piper_rows(data: Path) -> Iterator[BenchRow]:
    """A row for every setting whose graph is there."""
    yield from (row for setting in published_settings() if (row := piper_row(data, setting)))


def piper_row(data: Path, setting: PiperSetting) -> BenchRow | None:
    """One setting; None where its graph is missing."""
    path = data / "piper" / "inputs" / f"{setting.graph}.json"
    if not path.is_file():
        return None
    request = PlaceRequest(
        devices=setting.devices, memory=setting.memory_GiB * 2**30, bandwidth=PUBLISHED_BANDWIDTH,
        microbatches=setting.microbatches,
    )  # fmt: skip
    problem = read_piper(path, request)
    started = time.perf_counter()
    found = solve_piper(problem)
    seconds = time.perf_counter() - started
    if isinstance(found, Infeasible):
        value, bound, note = None, None, "infeasible" + ("" if setting.best_known is None else ", but a plan is known")
    else:
        value, bound = found.objective, found.bound
        note = "a plan, though none is known" if setting.best_known is None else ""
    return BenchRow(
        family="piper", problem=setting.graph, setting=f"{setting.devices} devices, {setting.memory_GiB:g} GiB",
        value=value, unit=PUBLISHED_UNITS[setting.graph], known=setting.best_known, bound=bound,
        seconds=seconds, note=note, known_kind="best known" if setting.best_known is not None else "infeasible",
        published=(("equal split", setting.equal_split, None),) if setting.equal_split is not None else (),
    )  # fmt: skip


def aceso_rows(data: Path) -> Iterator[BenchRow]:
    """A row for every published case."""
    folder = data / "aceso" / "profiled-time-miniset"
    if folder.is_dir():
        yield from (aceso_row(folder, case) for case in aceso_cases.CASES)


def aceso_row(folder: Path, case: aceso_cases.AcesoCase) -> BenchRow:
    """One case."""
    problem, batch = aceso_cases.case_problem(case, folder), case.global_batch
    known = step_of(problem, aceso_cases.published_plan(case)).milliseconds
    found = solve_aceso(problem)
    value, bound, seconds, note = None, None, 0.0, str(found)
    if not isinstance(found, Infeasible):
        value, bound, seconds, note = found.milliseconds / 1000, found.bound / 1000, found.seconds, ""
    return BenchRow(
        family="aceso", problem=case.name, setting=f"4 V100, {aceso_cases.MEMORY_MB:.0f} MB, batch {batch}",
        value=value, unit="s", bound=bound, seconds=seconds,
        known=known / 1000, known_kind="published plan by this evaluator",
        published=(
            ("Aceso, predicted", case.predicted_ms / 1000, case.search_seconds),
            *((f"{name}, measured", batch / rate, None) for name, rate in case.throughput),
        ),
        note=note,
    )  # fmt: skip


def galvatron_rows(data: Path) -> Iterator[BenchRow]:
    """A row for every published search."""
    path = data / "galvatron" / "test_search_inputs.json"
    if path.is_file():
        yield from (galvatron_row(path, case) for case in galvatron_cases.CASES)


def galvatron_row(path: Path, case: galvatron_cases.GalvatronCase) -> BenchRow:
    """One case."""
    problem = galvatron_cases.case_problem(case, path)
    found = solve_galvatron(problem, per_layer=case.per_layer)
    value, bound, seconds, note = None, None, 0.0, str(found)
    if not isinstance(found, Infeasible):
        value, bound, seconds = problem.batch / found.throughput, problem.batch / found.bound, found.seconds
        note = f"{found.throughput:.6f} samples/s"
    return BenchRow(
        family="galvatron", problem=case.name, setting=f"8 devices, 36 GiB, batch 64 in {case.chunks}",
        value=value, unit="s", bound=bound, seconds=seconds,
        known=problem.batch / value_of(problem, case.plan).throughput,
        known_kind="expected plan by this evaluator",
        published=(("Galvatron, expected", problem.batch / case.throughput, None),),
        note=note,
    )  # fmt: skip
