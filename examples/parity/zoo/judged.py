"""Judged cases: a model under a layout, run on ranks, held against the plain loop."""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

from torch import Tensor

from examples.parity.zoo.eager import Numbers
from examples.parity.zoo.entry import Entry
from examples.parity.zoo.judge import Judge
from examples.parity.zoo.layouts import ZooLayout, first_plan, laid_out, layouts
from placer.errors import ExecutionError, PlacerError
from placer.plans.plan import Plan
from placer.runtime import load
from placer.runtime.distributed.rank_pool import RankPool
from placer.runtime.distributed.world import device_of
from placer.runtime.stages.captured_model import CapturedModel, captured
from placer.runtime.weights.meta_model import prepared_model

CASE_SECONDS = 1200.0
# What is said of models that have not enough to be cut in so many.
SMALL = re.compile(r"need \d+ blocks|it has \d+ blocks|nothing to cut|has no ")

Verdict = Literal["equal", "refused", "WRONG", "crash", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What came of a case. broken: the model does not run in the plain loop either.

    needless: refused, though its batch may be divided, or is not; where no part of it is said to be too small.
    """

    entry: Entry
    layout: str
    verdict: Verdict
    told: str
    needless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What placer said before anything ran."""

    why: str


_CAPTURED: dict[tuple[str, str], CapturedModel] = {}


def judged(pool: RankPool, entries: Sequence[Entry], which: str, only: str, seed: int) -> Iterator[Judged]:
    """The cases of some models, each captured once before ranks are forked."""
    pool.close()
    _CAPTURED.clear()
    for case in [case for one in entries for case in _cases(one, which, only, seed)]:
        if isinstance(case, Judged):
            yield case
        else:
            yield _outcome(pool, case)


def run_on_rank(plan: Plan, batches: list[dict[str, Tensor]], fresh: bool = False) -> Numbers | Refusal | None:
    """What every rank calls; the numbers are rank 0's. fresh: the model is captured by the rank itself."""
    try:
        kept = None if fresh else _CAPTURED[_key(plan)]
        executor = load(plan, capture=kept, timeout_seconds=CASE_SECONDS / 2)
    except PlacerError as error:
        return Refusal(why=str(error))
    executor.keeps_gradients = True
    before = _copied(executor.full_state_dict())
    losses, gradients = [], []
    for batch in batches:
        losses.append(executor.step(batch))
        gradients.append(_copied(executor.last_gradients))
    after = _copied(executor.full_state_dict())
    evaluated = None if plan.graph.evaluation else executor.evaluate(batches[-1])
    if executor.rank:
        return None
    return Numbers(losses=tuple(losses), gradients=tuple(gradients), before=before, after=after, evaluated=evaluated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A case that can be run by ranks forked from this process."""

    judge: Judge
    layout: ZooLayout
    plan: Plan

    def judged(self, verdict: Verdict, told: str) -> Judged:
        """The case with its verdict."""
        return _verdict(self.judge, self.layout, verdict, told)


def _cases(one: Entry, which: str, only: str, seed: int) -> Iterator[Waiting | Judged]:
    """The cases of a model, and the verdicts of those that need no ranks."""
    judge = Judge(one, seed)
    try:
        judge.expected("float64")
    except Exception:
        yield Judged(entry=one, layout="eager", verdict="broken", told=traceback.format_exc(limit=-3))
        return
    captured_in = cache(lambda precision: _planned(partial(first_plan, one, precision)))
    for layout in layouts(one, which):
        if only not in layout.name or not judge.runs(layout.precision):
            continue
        first = captured_in(layout.precision)
        plan = _planned(partial(_prepared, first, layout)) if isinstance(first, Plan) else first
        if isinstance(plan, Plan):
            yield Waiting(judge=judge, layout=layout, plan=plan)
        else:
            yield _verdict(judge, layout, *plan)


def _verdict(judge: Judge, layout: ZooLayout, verdict: Verdict, told: str) -> Judged:
    needless = verdict == "refused" and not SMALL.search(told) and (layout.whole or judge.divides)
    return Judged(entry=judge.entry, layout=layout.name, verdict=verdict, told=told, needless=needless)


def _planned(make: Callable[[], Plan]) -> Plan | tuple[Verdict, str]:
    """A plan, or why there is none: also where it takes longer than a whole case may."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(int(CASE_SECONDS))
    try:
        return make()
    except PlacerError as error:
        return "refused", str(error)
    except Exception:
        return "crash", traceback.format_exc(limit=-3)
    finally:
        signal.alarm(0)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"no plan within {CASE_SECONDS:.0f} s")


def _prepared(first: Plan, layout: ZooLayout) -> Plan:
    """The plan, its model captured in this process."""
    plan = laid_out(first, layout)
    key = _key(plan)
    if key not in _CAPTURED:
        _CAPTURED[key] = captured(plan, prepared_model(plan, None, device_of(plan, 0)))
    return plan


def _outcome(pool: RankPool, case: Waiting) -> Judged:
    judge, plan = case.judge, case.plan
    given, fresh = judge.given(case.layout.precision), case.layout.fresh
    try:
        found = pool.run(plan.world_size, run_on_rank, plan, given, fresh, timeout=CASE_SECONDS)
    except ExecutionError as error:
        return case.judged("crash", _culprit(str(error)))
    refusals = [one.why for one in found if isinstance(one, Refusal)]
    if refusals:
        return case.judged("refused", refusals[0])
    assert isinstance(found[0], Numbers)
    unlike = judge.difference(found[0], case.layout.precision)
    return case.judged("WRONG", unlike) if unlike else case.judged("equal", "")


def _culprit(text: str) -> str:
    """Of the tracebacks of ranks the last one that is not about a peer that went away."""
    ranks = re.split(r"^(?=rank \d+:$)", text, flags=re.MULTILINE)
    own = [
        rank for rank in ranks if rank.strip() and not any(word in rank for word in ("closed by peer", "Broken pipe"))
    ]
    return (own or ranks)[-1].strip()


def _key(plan: Plan) -> tuple[str, str]:
    return plan.model.reference, plan.settings.precision


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: one.detach().to_dense().clone() for name, one in tensors.items()}
