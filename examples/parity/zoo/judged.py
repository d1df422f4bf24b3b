"""Judged cases: a model under a layout, run on ranks, held against the plain loop."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from examples.parity.zoo.eager import Numbers, Rule, trained
from examples.parity.zoo.entry import Entry
from examples.parity.zoo.layouts import ZooLayout, first_plan, laid_out, layouts
from placer.errors import ExecutionError, PlacerError
from placer.plans.plan import Plan
from placer.runtime import load
from placer.runtime.distributed.rank_pool import RankPool
from placer.runtime.distributed.world import device_of
from placer.runtime.stages.captured_model import CapturedModel, captured
from placer.runtime.weights.meta_model import prepared_model

STEPS = 3
CASE_SECONDS = 60.0
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
# What rounding may do: float64, and models that cast to float32 themselves.
EXACT, CAST = 1e-9, 1e-6
# A gradient that is zero but for rounding is held to the largest gradient of the model.
NOISE = 1e-4

Verdict = Literal["equal", "refused", "WRONG", "crash", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What came of a case. broken: the model does not run in the plain loop either."""

    entry: Entry
    layout: str
    verdict: Verdict
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What placer said before anything ran."""

    why: str


_CAPTURED: dict[tuple[str, str], CapturedModel] = {}


def judged(pool: RankPool, one: Entry, which: str, only: str, seed: int) -> Iterator[Judged]:
    """The cases of one model, captured once before ranks are forked."""

    def told(verdict: Verdict, layout: str, text: str) -> Judged:
        return Judged(entry=one, layout=layout, verdict=verdict, told=text)

    pool.close()
    _CAPTURED.clear()
    try:
        judge = Judge(one, seed)
        judge.expected("float64")
    except Exception:
        yield told("broken", "eager", traceback.format_exc(limit=-3))
        return
    chosen = [layout for layout in layouts(one, which) if only in layout.name]
    try:
        first = first_plan(one)
    except PlacerError as error:
        yield from (told("refused", layout.name, str(error)) for layout in chosen)
        return
    except Exception:
        yield from (told("crash", layout.name, traceback.format_exc(limit=-3)) for layout in chosen)
        return
    for layout, plan in [(layout, _prepared(first, layout)) for layout in chosen]:
        if isinstance(plan, Plan):
            yield told(*_verdict(pool, judge, layout, plan))
        else:
            yield told("crash", layout.name, plan) if isinstance(plan, str) else told("refused", layout.name, plan.why)


def run_on_rank(one: Entry, plan: Plan, batches: list[dict[str, Tensor]]) -> Numbers | Refusal | None:
    """What every rank calls; the numbers are rank 0's."""
    try:
        executor = load(plan, capture=_CAPTURED.get(_key(plan)), timeout_seconds=CASE_SECONDS / 2)
    except PlacerError as error:
        return Refusal(why=str(error))
    executor.keeps_gradients = True
    before = _copied(executor.full_state_dict())
    losses, gradients = [], []
    for batch in batches:
        losses.append(executor.step(batch))
        gradients.append(_copied(executor.last_gradients))
    after = _copied(executor.full_state_dict())
    if executor.rank:
        return None
    return Numbers(losses=tuple(losses), gradients=tuple(gradients), before=before, after=after)


class Judge:
    """The plain loop's numbers of one model, by precision."""

    def __init__(self, one: Entry, seed: int) -> None:
        self.entry = one
        self.batches = [one.made(1000 * seed + step) for step in range(STEPS)]
        self.expected = cache(self._expected)

    def _expected(self, precision: str, nudge: float = 0.0, noise: int = 0) -> Numbers:
        settings = self.entry.settings
        rule = Rule(
            name=settings.optimizer, learning_rate=settings.learning_rate, betas=settings.betas,
            epsilon=settings.epsilon, weight_decay=settings.weight_decay, momentum=settings.momentum,
            clip=settings.clip_norm, autocast=precision == "bfloat16-autocast",
        )  # fmt: skip
        dtype = DTYPES.get(precision, torch.float32)
        return trained(self.entry.build, self.batches, self.entry.loss, rule, dtype, nudge=nudge)

    def difference(self, found: Numbers, precision: str) -> str:
        """What is unlike the plain loop; "" where nothing is."""
        limit = CAST if self.entry.casts else EXACT
        return _difference(found, self.expected(precision), limit)


def _difference(found: Numbers, wanted: Numbers, limit: float) -> str:
    """The first thing that differs, in the order in which it was computed."""
    if missing := wanted.before.keys() ^ found.before.keys():
        return f"state names differ: {sorted(missing)[:4]}"
    parts: list[tuple[str, Mapping[str, Tensor], Mapping[str, Tensor], float]] = []
    parts.append(("initial", found.before, wanted.before, 0.0))
    for step, (ours, theirs) in enumerate(zip(found.gradients, wanted.gradients, strict=True), 1):
        parts.append((f"loss of step {step}", _loss(found, step), _loss(wanted, step), 1e-12))
        largest = max((float(one.abs().max()) for one in theirs.values() if one.numel()), default=0.0)
        parts.append((f"step {step} gradient", _filled(ours, theirs), _filled(theirs, ours), NOISE * largest))
    parts.append(("final", found.after, wanted.after, 0.0))
    lines = [line for part in parts if (line := _unlike(*part, limit))]
    return "; ".join(lines[:3])


def _loss(numbers: Numbers, step: int) -> dict[str, Tensor]:
    return {"": torch.tensor(numbers.losses[step - 1], dtype=torch.float64)}


def _unlike(what: str, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], floor: float, limit: float) -> str:
    worst, where = 0.0, ""
    for name, right in wanted.items():
        left = found[name]
        if left.shape != right.shape:
            return f"{what} {name}: shape {tuple(left.shape)}, eager {tuple(right.shape)}"
        apart = _relative(left, right, floor)
        if apart > worst:
            worst, where = apart, name
    return f"{what} {where}: off by {worst:.1e}" if worst > limit else ""


def _relative(left: Tensor, right: Tensor, floor: float) -> float:
    if not right.numel():
        return 0.0
    left, right = left.double(), right.double()
    if bool((left.isnan() != right.isnan()).any()):
        return float("inf")
    left, right = left.nan_to_num(), right.nan_to_num()
    scale = max(float(right.abs().max()), floor) or 1.0
    return float((left - right).abs().max()) / scale


def _filled(own: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No gradient counts as zeros here: whether the optimizer saw one shows in the final weights."""
    return {name: own.get(name, torch.zeros_like(one)) for name, one in {**other, **own}.items()}


def _prepared(first: Plan, layout: ZooLayout) -> Plan | Refusal | str:
    """The plan, its model captured in this process; what was said where there is none."""
    try:
        plan = laid_out(first, layout)
        if _key(plan) not in _CAPTURED:
            _CAPTURED[_key(plan)] = captured(plan, prepared_model(plan, None, device_of(plan, 0)))
    except PlacerError as error:
        return Refusal(why=str(error))
    except Exception:
        return traceback.format_exc(limit=-3)
    return plan


def _verdict(pool: RankPool, judge: Judge, layout: ZooLayout, plan: Plan) -> tuple[Verdict, str, str]:
    try:
        found = pool.run(plan.world_size, run_on_rank, judge.entry, plan, judge.batches, timeout=CASE_SECONDS)
    except ExecutionError as error:
        return "crash", layout.name, _culprit(str(error))
    refusals = [one.why for one in found if isinstance(one, Refusal)]
    if refusals:
        return "refused", layout.name, refusals[0]
    assert isinstance(found[0], Numbers)
    unlike = judge.difference(found[0], layout.precision)
    return ("WRONG", layout.name, unlike) if unlike else ("equal", layout.name, "")


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
