"""Bytes of a device over one step, by category, against what it has: a chart for each pipeline position.

State is there all the time. A microbatch's activations come with its forward and go with its backward; gradients are
there from the first backward of a stage to the update; in a backward there is besides what it makes on its way. Times
are those of the simulation, bytes those of `placer.costs.memory`, as they are for the device with least to spare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from placer.costs.costs import Costs
from placer.costs.memory.peak import StageMemory
from placer.costs.step_estimate import costs_of, tightest
from placer.plans.plan import Plan, replica_rows
from placer.plans.schedule import Action
from placer.program.ranks import rank_of
from placer.report.page.charts import CAUSE_COLORS, Chart, Section, cause_legend, chart, level, packed
from placer.report.page.markup import Markup, counted, heading, paragraph
from placer.report.printing import bytes_text
from placer.simulator.timeline import Slice, Timeline

GIB = 2**30
MOST_POSITIONS = 16
MOST_MOMENTS = 400
# What a device has is on the chart where no more than so many times what is used.
SEEN = 3
CATEGORIES = ("parameters", "optimizer", "buffers", "overhead", "gradients", "activations", "backward pass")


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesOverTime:
    """Of one position: at `times` (seconds, rising) bytes by category change to those of `held`."""

    device: int
    times: tuple[float, ...]
    held: Mapping[str, tuple[int, ...]]

    @property
    def totals(self) -> list[int]:
        """All bytes from each of the times on."""
        lines: zip[tuple[int, ...]] = zip(*self.held.values(), strict=True)
        return list(map(sum, lines))

    @property
    def highest(self) -> int:
        """The most at once."""
        return max(self.totals)


def memory_section(plan: Plan, timeline: Timeline) -> Section:
    """A chart for each position whose ranks were played."""
    found = list(bytes_over_time(plan, timeline))
    told = f"{counted(len(found), 'pipeline position')}; the dashed line is what a device has, where near."
    if len(found) > MOST_POSITIONS:
        told += f" The first {MOST_POSITIONS} are drawn."
    used = [name for name in CATEGORIES if any(any(one.held[name]) for one in found)]
    parts: list[Markup | Chart] = [paragraph(told), cause_legend(used)]
    for position, one in enumerate(found[:MOST_POSITIONS]):
        device = plan.cluster.devices[one.device]
        title = f"Position {position}: at most {bytes_text(one.highest)} of {bytes_text(device.memory_bytes)}"
        parts += [heading(title), _drawn(one, device.memory_bytes, timeline.step_seconds)]
    return Section("Memory over the step", tuple(parts))


def bytes_over_time(plan: Plan, timeline: Timeline) -> Iterator[BytesOverTime]:
    """Of each position the device with least bytes to spare, by the times of a rank like it."""
    costs = costs_of(plan)
    for position, (device, total) in enumerate(tightest(costs, plan)):
        held = {stage: _stage_bytes(costs, plan, stage, device) for stage in plan.stages_at[position]}
        first = rank_of(plan, position, 0, 0)
        played = [rank for rank in timeline.ranks if first <= rank < first + len(plan.meshes[position].devices)]
        slices = timeline.lane(played[0], "compute")
        yield _played(device, slices, held, total.overhead, parts=position > 0)


def _stage_bytes(costs: Costs, plan: Plan, number: int, device: int) -> StageMemory:
    stage = plan.stages[number]
    own = costs.of_stage(plan, stage)
    replica = stage.devices.index(device) // stage.degree
    rows = replica_rows(max(plan.microbatches), stage.shares, stage.replicas)[replica]
    return own.stage_bytes(stage, device, rows, accumulates=len(plan.microbatches) > 1)


@dataclass(slots=True)
class _Held:
    """What a device holds at some moment: of each stage microbatches in flight, those whose backward waits for its
    weight part, and whether gradients are there. parts: whether a backward may come in two parts at all: the first
    position has no inputs whose gradients could come first."""

    state: Mapping[str, int]
    parts: bool
    stages: Mapping[int, StageMemory]
    flight: Counter[int] = field(default_factory=Counter)
    parted: Counter[int] = field(default_factory=Counter)
    summed: set[int] = field(default_factory=set)

    def line(self, passing: int = 0) -> dict[str, int]:
        """Bytes by category; passing: what a backward or the update has on its way."""
        waiting = sum(count * (self.stages[at].arrived + self.stages[at].again) for at, count in self.parted.items())
        return {
            **self.state,
            "gradients": sum(one.gradients for at, one in self.stages.items() if at in self.summed),
            "activations": sum(self.flight[at] * one.living for at, one in self.stages.items()),
            "backward pass": passing + waiting,
        }

    def backward(self, action: Action) -> dict[str, int]:
        """While a backward runs; a first one gives up its blocks' activations as their gradients come (`turning`)."""
        one = self.stages[action.stage]
        if action.kind == "I" and self.parts:
            self.parted[action.stage] += 1
            return self.line(one.working)
        passing = one.temporary if action.stage in self.summed else max(0, one.turning - one.living)
        return self.line(passing if action.kind in ("B", "I") or not self.parts else 0)

    def ended(self, action: Action) -> dict[str, int]:
        """After it."""
        if action.kind != "I":
            self.summed.add(action.stage)
            self.flight[action.stage] -= 1
            self.parted[action.stage] -= action.kind == "W" and self.parts
        return self.line()


def _played(
    device: int, slices: Sequence[Slice], stages: Mapping[int, StageMemory], overhead: int, *, parts: bool
) -> BytesOverTime:
    state = {
        "parameters": sum(one.parameters for one in stages.values()),
        "optimizer": sum(one.optimizer for one in stages.values()),
        "buffers": sum(one.buffers + one.lasting for one in stages.values()),
        "overhead": overhead,
    }
    held = _Held(state=state, parts=parts, stages=stages)
    times, lines = [0.0], [held.line()]
    for entry in slices:
        times.append(entry.start)
        if entry.name == "update":
            lines.append(held.line(max(one.updating for one in stages.values())))
            held.summed.clear()
            times.append(entry.end)
            lines.append(held.line())
            continue
        action = Action.parse(entry.name)
        if action.kind == "F":
            held.flight[action.stage] += 1
            lines.append(held.line())
            continue
        times.append(entry.end)
        lines += [held.backward(action), held.ended(action)]
    return BytesOverTime(
        device=device, times=tuple(times), held={name: tuple(line[name] for line in lines) for name in CATEGORIES}
    )


def fullest_moments(found: BytesOverTime) -> list[int]:
    """The numbers of the moments that are drawn: all, or of as many equal parts of the step the fullest of each."""
    last, totals = found.times[-1], found.totals
    if len(totals) <= MOST_MOMENTS or not last:
        return list(range(len(totals)))
    fullest: dict[int, int] = {}
    for at, time in enumerate(found.times):
        part = int(time / last * MOST_MOMENTS)
        if part not in fullest or totals[at] > totals[fullest[part]]:
            fullest[part] = at
    return sorted(fullest.values())


def _drawn(found: BytesOverTime, has: int, end: float) -> Chart:
    near = found.highest * SEEN > has
    drawn = chart(
        across="milliseconds", up="GiB", height=200,
        bottom_top=(0.0, (max(has, found.highest) if near else found.highest) / GIB * 1.05),
    )  # fmt: skip
    chosen = fullest_moments(found)
    starts = [found.times[at] for at in chosen]
    names = [name for name in CATEGORIES if any(found.held[name])]
    source = {"x": packed([time * 1e3 for time in (*starts, end) for _ in (0, 1)][1:-1])}
    for name in names:
        source[name] = packed(found.held[name][at] / GIB for at in chosen for _ in (0, 1))
    drawn.varea_stack(
        names, x="x", source=source, color=[CAUSE_COLORS[name] for name in names]
    )  # fmt: skip
    level(drawn, has / GIB)
    return drawn
