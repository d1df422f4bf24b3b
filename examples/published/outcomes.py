"""A published run beside our plan for the same problem: what is compared, its line, what all rows come to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean, median

from examples.published.runs import Run
from placer.strategies.baselines.megatron import MegatronDegrees

# What sums in another order may differ by.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """A plan with its estimate in seconds, and whether it fits on its devices."""

    layout: MegatronDegrees
    seconds: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run, its published layout estimated, and our plan for the problem of its group; None where there is none.

    rival: the published layout estimated with the model that ours is for. among: the fastest of the layouts that the
    published one was chosen among (`published_space`).
    """

    run: Run
    published: Estimated | None = None
    rival: Estimated | None = None
    ours: Estimated | None = None
    among: Estimated | None = None

    @property
    def error(self) -> float | None:
        """Signed relative error of the estimate of the published layout."""
        if self.published is None or not self.run.seconds:
            return None
        return self.published.seconds / self.run.seconds - 1

    @property
    def slower(self) -> bool | None:
        """Whether our plan is slower by estimate than the published layout; None where they cannot be compared."""
        if self.rival is None or self.ours is None or not self.rival.fits:
            return None
        return self.ours.seconds > self.rival.seconds * (1 + ROUNDING)

    @property
    def same(self) -> bool:
        """Whether our plan has the degrees, the microbatch, the recompute and the sharding of the published one."""
        if self.rival is None or self.ours is None:
            return False
        return _compared(self.ours.layout) == _compared(self.rival.layout)

    @property
    def same_among(self) -> bool:
        """Whether the fastest layout of its space is the published one."""
        return self.among is not None and self.rival is not None and self.among.layout == self.rival.layout


def regrets(found: Iterable[Outcome]) -> tuple[float, ...]:
    """For each group of several rows measured seconds of the one estimated fastest, over the best measured; less 1."""
    groups: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for outcome in found:
        if outcome.published is not None and outcome.run.seconds:
            pair = (outcome.published.seconds, outcome.run.seconds)
            groups.setdefault(outcome.run.group, []).append(pair)
    several = [group for group in groups.values() if len(group) > 1]
    return tuple(min(group)[1] / min(measured for _, measured in group) - 1 for group in several)


def _compared(layout: MegatronDegrees) -> tuple[object, ...]:
    """What makes two layouts the same; whether norms are cut on the sequence is the integer program's to say."""
    return (
        layout.tensor, layout.pipeline, layout.data, layout.expert, layout.context, layout.virtual, layout.rows,
        layout.recompute, layout.sharding,
    )  # fmt: skip


def shown(layout: MegatronDegrees) -> str:
    """A layout in short: t2 p4 d8 x2 b1 recompute."""
    parts = [f"t{layout.tensor} p{layout.pipeline} d{layout.data} b{layout.rows}"]
    parts += [f"e{layout.expert}"] * (layout.expert > 1)
    parts += [f"c{layout.context}"] * (layout.context > 1)
    parts += [f"v{layout.virtual}"] * (layout.virtual > 1)
    parts += [layout.schedule] * (layout.schedule not in ("1f1b", "interleaved"))
    parts += [f"shard {layout.sharding}"] * (layout.sharding != "none")
    parts += ["recompute"] * bool(layout.recompute)
    return " ".join(parts)


def line(outcome: Outcome) -> str:
    """One row of the table."""
    run, published, ours = outcome.run, outcome.published, outcome.ours
    name = f"{run.row.rpartition('#')[2]:>5} {run.model[:20]:20} {run.cluster:18}"
    if published is None:
        return f"{name} not estimated: {'; '.join(run.unmodelled) or 'the sizes of the model are not printed'}"
    error = "" if outcome.error is None else f"{outcome.error:+7.1%}"
    text = f"{name} {shown(published.layout):34} measured {run.seconds:9.4f} s estimate {published.seconds:9.4f} s"
    text += f" {error:8}"
    if ours is not None:
        text += f" ours {shown(ours.layout):44} {ours.seconds:9.4f} s"
    if outcome.among is not None:
        text += f" in its space {shown(outcome.among.layout)}" * (not outcome.same_among)
        text += " first in its space" * outcome.same_among
    verdict = {None: "", True: "SLOWER", False: "same" if outcome.same else "faster"}[outcome.slower]
    notes = (*run.notes, *(() if published.fits else ("does not fit by our account of memory",)))
    return f"{text} {verdict}" + (f" ({'; '.join(notes)})" if notes else "")


def summary(family: str, found: list[Outcome]) -> str:
    """What the rows of a family come to."""
    compared = [outcome for outcome in found if outcome.slower is not None]
    errors = [outcome.error for outcome in found if outcome.error is not None]
    lines = [
        f"{family}: {len(found)} rows, {sum(o.published is not None for o in found)} estimated, "
        f"{len({o.run.group for o in found if o.published is not None})} problems",
        f"  ours slower by estimate than the published layout: {sum(bool(o.slower) for o in compared)} of "
        f"{len(compared)}; the same: {sum(o.same for o in compared)}; not compared, since the published one does not "
        f"fit by our account of memory: {sum(o.published is not None and not o.published.fits for o in found)}",
    ]
    chosen = [outcome for outcome in found if outcome.among is not None]
    if chosen:
        lines.append(
            f"  among layouts that differ in degrees and microbatch only, in {len({o.run.group for o in chosen})} "
            f"problems: the published one is our first in {sum(o.same_among for o in chosen)} of {len(chosen)} rows, "
            f"its degrees are in {sum(_degrees(o) for o in chosen)}; it takes {median(map(_longer, chosen)):.1%} "
            f"longer than our first at the median, by estimate"
        )
    if errors:
        lines.append(
            f"  error on the published rows: MAPE {mean(map(abs, errors)):.1%}, median {median(map(abs, errors)):.1%}, "
            f"mean {mean(errors):+.1%}"
        )
    lost = regrets(found)
    if lost and family == "vtrain":
        lines.append(
            f"  regret of the row ranked first, over {len(lost)} groups: mean {mean(lost):.2%}, median "
            f"{median(lost):.2%}, worst {max(lost):.1%}; the best row itself in {sum(not r for r in lost)}"
        )
    return "\n".join(lines)


def _degrees(outcome: Outcome) -> bool:
    """Whether the fastest layout of its space has the degrees of the published one."""
    assert outcome.among is not None and outcome.rival is not None
    pairs = [(e.tensor, e.pipeline, e.data) for e in (outcome.among.layout, outcome.rival.layout)]
    return pairs[0] == pairs[1]


def _longer(outcome: Outcome) -> float:
    """How much longer the published layout takes by estimate than the fastest of its space."""
    assert outcome.among is not None and outcome.rival is not None
    return outcome.rival.seconds / outcome.among.seconds - 1
