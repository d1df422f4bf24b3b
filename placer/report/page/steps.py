"""One step, played event by event: a row for each lane of each rank that was played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import get_args

from placer.plans.plan import Plan
from placer.program.ranks import position_of_rank
from placer.report.page.charts import CAUSE_COLORS, Chart, Section, cause_legend, chart, packed
from placer.report.page.markup import Markup, folded, paragraph, table
from placer.report.printing import seconds_text, share_text
from placer.simulator.timeline import Lane, Slice, Timeline

# What a browser draws and moves without being slow.
MOST_SLICES = 12_000
MOST_RANKS = 48
# Of so many ranks messages are drawn too; of more the lanes below only.
FEW_RANKS = 8
LANES_OF_MANY = ("compute", "collective")
NAME = "timeline"
MILLISECONDS = 1e3


def steps_section(plan: Plan, timeline: Timeline) -> Section:
    """The timeline, and of each rank the share of the step that it computes."""
    ranks = drawn_ranks(plan, timeline)
    end, seconds = timeline.step_seconds, timeline.ledger.seconds
    told = (
        f"A step of {seconds_text(end)} by simulation, bubble {share_text(seconds.bubble / end)} on its slowest rank. "
        f"Ranks that do the same are played once: {len(timeline.ranks)} of {plan.world_size}"
    )
    if len(ranks) < len(timeline.ranks):
        told += f"; {len(ranks)} of them are drawn, {len(timeline.ranks) - len(ranks)} left out"
    if len(ranks) > FEW_RANKS:
        told += "; the lanes of their messages are left out"
    alike = dict(timeline.stands_for)
    shares = [
        (f"rank {rank}", str(alike[rank]), share_text(timeline.busy_seconds(rank, "compute") / end)) for rank in ranks
    ]
    parts: tuple[Markup | Chart, ...] = (
        paragraph(f"{told}."),
        step_legend([timeline]),
        _keys(end),
        '<p class="note">Drag to move; hold Ctrl and turn the wheel, or use the buttons, to zoom.</p>',
        timeline_chart(plan, timeline),
        folded("Ranks as a table", table(("rank", "stands for", "computes"), shares)),
    )
    return Section("The step", parts)


def drawn_ranks(plan: Plan, timeline: Timeline) -> tuple[int, ...]:
    """As many of the played ranks as can be drawn: the first of each position before others, these spread evenly."""
    slices = Counter(entry.rank for entry in timeline.slices if entry.lane in LANES_OF_MANY)
    most = max(1, min(MOST_RANKS, MOST_SLICES * len(slices) // max(1, slices.total())))
    firsts = {position_of_rank(plan, rank): rank for rank in reversed(timeline.ranks)}
    chosen = sorted(firsts.values())
    if len(chosen) > most:
        return _spread(chosen, most)
    others = [rank for rank in timeline.ranks if rank not in set(chosen)]
    return tuple(sorted((*chosen, *_spread(others, min(len(others), most - len(chosen))))))


def _spread(ranks: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(ranks[at * len(ranks) // count] for at in range(count))


def step_legend(timelines: Iterable[Timeline]) -> Markup:
    """What the colours of these timelines stand for."""
    return cause_legend(dict.fromkeys(_cause(entry) for timeline in timelines for entry in timeline.slices))


def timeline_chart(plan: Plan, timeline: Timeline, *, end: float | None = None) -> Chart:
    """The slices of the ranks that are drawn, on an axis to `end` seconds (None: of the step)."""
    ranks = drawn_ranks(plan, timeline)
    shown, lanes_shown = set(ranks), get_args(Lane) if len(ranks) <= FEW_RANKS else LANES_OF_MANY
    chosen = [
        entry for entry in timeline.slices if entry.rank in shown and entry.lane in lanes_shown and entry.seconds > 0
    ]
    lanes = list(dict.fromkeys(_lane(entry) for entry in sorted(chosen, key=_order)))
    drawn = chart(
        across="milliseconds", up="", rows=lanes,
        height=90 + 22 * len(lanes), left_right=(0.0, (end or timeline.step_seconds) * MILLISECONDS),
        tooltips=[("", "@name"), ("from", "@left ms"), ("to", "@right ms")],
    )  # fmt: skip
    drawn.tags = [NAME]
    for cause in dict.fromkeys(map(_cause, chosen)):
        own = [entry for entry in chosen if _cause(entry) == cause]
        drawn.hbar(
            y="lane", left="left", right="right", height=0.8, color=CAUSE_COLORS[cause], line_width=0,
            source={
                "lane": [_lane(entry) for entry in own],
                "left": packed(entry.start * MILLISECONDS for entry in own),
                "right": packed(entry.end * MILLISECONDS for entry in own),
                "name": [entry.name for entry in own],
            },
        )  # fmt: skip
    return drawn


def _order(entry: Slice) -> tuple[int, int]:
    return entry.rank, get_args(Lane).index(entry.lane)


def _lane(entry: Slice) -> str:
    return f"rank {entry.rank} {entry.lane}"


def _cause(entry: Slice) -> str:
    """What the largest part of a slice is for."""
    if entry.parts:
        return max(entry.parts, key=lambda part: part.seconds).kind
    return "reduction" if entry.lane == "collective" else "communication"


def _keys(end: float) -> Markup:
    """Buttons, which keys reach too."""
    names = {"in": "zoom in", "out": "zoom out", "left": "left", "right": "right", "all": "whole step"}
    shown = "".join(f'<button type="button" data-zoom="{key}">{name}</button>' for key, name in names.items())
    return f'<div class="zoom" data-chart="{NAME}" data-full="{end * MILLISECONDS}">{shown}</div>'
