"""The game that makes a plan: an outline field after field, then stage after stage where it ends and if it recomputes.

A decision has at most `MOST_OPTIONS` options, each the state after it. Options from which no plan of sound structure
within the pins can follow are not there; decisions with one option are made at once. What does not fit in memory is
allowed: its outcome says by how much (`outcomes`).

Graphs are coarsened as they are cut: a stage's end moves in steps of an eighth of its blocks (`stage_ends`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from placer.io.memo import remembered
from placer.plans.plan import Layout, Plan, Recompute
from placer.search.problem import Problem
from placer.strategies.intra_op.layouts import halfway, layouts, roomy_layouts
from placer.strategies.policy.loads import Loads
from placer.strategies.policy.outline_options import FIELDS, MOST_OPTIONS, OutlineOptions
from placer.strategies.policy.stage_ends import Ends, allowed_ends, offered_ends, stage_ends
from placer.strategies.space.outline import Outline, plan_of, recomputes

DECISIONS = (*FIELDS, "stage")

__all__ = ["DECISIONS", "MOST_OPTIONS", "Game", "State"]


@dataclass(frozen=True, slots=True)
class State:
    """How far a plan is made: fields chosen, then the end of each stage and whether it recomputes."""

    step: int
    outline: Outline
    ends: tuple[int, ...] = ()
    recompute: tuple[Recompute, ...] = ()

    @property
    def stage(self) -> int:
        """The stage to be decided."""
        return len(self.ends)

    @property
    def first(self) -> int:
        """Its first block."""
        return self.ends[-1] if self.ends else 0

    @property
    def decision(self) -> int:
        """Which of `DECISIONS` is next."""
        return min(self.step, len(FIELDS))

    @property
    def finished(self) -> bool:
        """Whether the plan is complete."""
        return self.step >= len(FIELDS) and self.stage == self.outline.stages


@dataclass(frozen=True, eq=False)
class Game:
    """The game of one problem; remembers its outlines."""

    problem: Problem
    #: With layouts that hold less on a device, for problems where no other plan fits.
    roomy: bool = False

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """How replicas of several devices may cut the ops."""
        return (roomy_layouts if self.roomy else layouts)(halfway(self.problem), self.problem.costs)

    @cached_property
    def loads(self) -> Loads:
        """Seconds of the blocks."""
        return Loads(self.problem, self.layouts)

    @cached_property
    def outlines(self) -> OutlineOptions:
        """The options of outlines."""
        return OutlineOptions(self.problem, self.layouts)

    @cached_property
    def start(self) -> State | None:
        """Before the first decision; None where pins leave no plan."""
        if self.problem.graph.loss.reduction == "none":
            return None
        blank = State(0, self.outlines.blank)
        return self._forced(blank) if self._options(blank) else None

    def options(self, state: State) -> tuple[State, ...]:
        """The states that may follow one that is not finished."""
        return tuple(self._forced(option) for option in self._options(state))

    def level_end(self, state: State) -> int:
        """Where a stage ends that takes its share of what is left, as nearly as it may."""
        allowed, level = self._allowed(state), self.loads.balanced_end(state.outline, state.stage, state.first)
        return min(allowed.latest, max(allowed.earliest, level))

    def plan(self, state: State) -> Plan:
        """The plan of a finished state."""
        layout = self.layouts[state.outline.layout] if state.outline.layout >= 0 else None
        return plan_of(self.problem, state.outline, state.ends[:-1], state.recompute, layout)

    def _forced(self, state: State) -> State:
        """After all decisions that have one option."""
        while not state.finished:
            following = self._options(state)
            if len(following) > 1:
                return state
            (state,) = following
        return state

    def _options(self, state: State) -> tuple[State, ...]:
        if state.step < len(FIELDS):
            return tuple(State(state.step + 1, made) for made in self.outlines.of(state.step, state.outline))
        return tuple(
            replace(state, ends=(*state.ends, end), recompute=(*state.recompute, again))
            for again in recomputes(self.problem)
            for end in self._ends(state)
        )

    def _ends(self, state: State) -> tuple[int, ...]:
        most = MOST_OPTIONS // len(recomputes(self.problem))
        return offered_ends(self.problem, state.outline, self._allowed(state), self.level_end(state), most)

    def _allowed(self, state: State) -> Ends:
        outline = state.outline
        known = self._stage_ends(outline)
        return allowed_ends(self.problem, outline, known, stage=state.stage, first=state.first)

    @remembered
    def _stage_ends(self, outline: Outline) -> tuple[Ends, ...]:
        return stage_ends(self.problem, outline)
