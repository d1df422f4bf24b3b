"""Galvatron's cost model: a row of equal layers and the vocabulary, each in its own tensor, data and sharding layout.

Source: Miao et al., "Galvatron", VLDB 2023, with the terms as in PKU-DAIR/Hetu-Galvatron (cost_model/components and
dynamic_programming, the version whose test is cited in `galvatron_cases`). One pipeline stage. With b samples of a
device per microbatch, w devices, degrees t (tensor, with sequence parallel) and d = w / t, in milliseconds:

    forward      = profiled(sequence) * b / t;   backward = 2 forward, and forward again where recomputed
    gathers      = 6 allgather_t(b * sequence * hidden), 1.5 times as many where recomputed
    gradients    = 2 (d - 1) / d * weights / t / 2 at the bandwidth of d devices, overlapped with backward
    sharded      = half of that again, not overlapped, where the weights are sharded (zero3)
    microbatch   = sum of layers without gradients + vocabulary without gradients
    step         = n microbatch + max(0, sum of layers with gradients - microbatch)
    memory       = sum of layers + vocabulary + context + buffer,   of megabytes rounded up each

`throughput` is samples per second. What is cached by the allocator (a fifth) and 1 GiB of context are kept free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from placer.errors import IllegalPlanError

CONTEXT_MB, CACHED = 1024.0, 0.2
# A shard is never quite a d-th (the published model's own margin); gradients are kept in fp32 beside it (5/4).
MARGIN, WITH_GRADIENTS = 0.003, 5 / 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GalvatronProfile:
    """Measurements at one sequence length: milliseconds of a sample, megabytes, GB/s, and fitted allgathers (ms).

    The maps are by degree; `gather_ms` by (degree, megabytes), with `gather_fit` the slope and the rest between them.
    """

    layer_ms: float
    vocabulary_ms: float
    layer_weights_MB: float  # noqa: N815 - the unit of the published files, here and below
    layer_kept_MB: Mapping[int, float]  # noqa: N815
    layer_checkpoint_MB: float  # noqa: N815
    vocabulary_states_MB: Mapping[int, float]  # noqa: N815
    vocabulary_kept_MB: Mapping[int, float]  # noqa: N815
    near_bandwidth: Mapping[int, float]
    far_bandwidth: Mapping[int, float]
    gather_ms: Mapping[tuple[int, int], float]
    gather_fit: Mapping[int, tuple[float, float]]
    overlap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GalvatronProblem:
    """What to place on `devices`: `layers` equal layers; `batch` samples in `chunks` microbatches."""

    profile: GalvatronProfile
    layers: int
    hidden: int
    sequence: int
    devices: int
    memory_MB: float  # noqa: N815
    batch: int
    chunks: int

    @property
    def room_MB(self) -> int:  # noqa: N802
        """Megabytes that a plan may use."""
        return int(self.memory_MB) - int(self.memory_MB * CACHED)

    def samples(self, tensor: int) -> int:
        """Samples per device and microbatch at a tensor degree; 0 where there are too few."""
        return self.batch // self.chunks // (self.devices // tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChoice:
    """A layer's tensor degree, whether its weights are sharded too (zero3, else zero2), whether it is recomputed."""

    tensor: int
    sharded: bool
    recompute: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GalvatronPlan:
    """The choice of each layer, and of the vocabulary (embedding and head): tensor degree, sharded or not."""

    layers: tuple[LayerChoice, ...]
    vocabulary_tensor: int
    vocabulary_sharded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GalvatronValue:
    """Samples per second, seconds of a step, megabytes used of those that may be."""

    throughput: float
    step_seconds: float
    used_MB: int  # noqa: N815


def value_of(problem: GalvatronProblem, plan: GalvatronPlan) -> GalvatronValue:
    """What a plan reaches. Raises IllegalPlanError where it does not fit or cannot be."""
    _check(problem, plan)
    used = used_memory(problem, plan)
    if used > problem.room_MB:
        raise IllegalPlanError(f"the plan needs {used} MB of {problem.room_MB} MB; recompute or shard more layers")
    times = [layer_ms(problem, choice) for choice in plan.layers]
    other = vocabulary_ms(problem, plan.vocabulary_tensor, sharded=plan.vocabulary_sharded)
    microbatch = sum(plain for plain, _ in times) + other
    step = problem.chunks * microbatch + max(0.0, sum(synced for _, synced in times) - microbatch)
    return GalvatronValue(throughput=problem.batch / step * 1000, step_seconds=step / 1000, used_MB=used)


def layer_ms(problem: GalvatronProblem, choice: LayerChoice) -> tuple[float, float]:
    """Milliseconds of a layer per microbatch, without and with the reduction of its gradients."""
    profile, data = problem.profile, problem.devices // choice.tensor
    forward = profile.layer_ms * problem.samples(choice.tensor) / choice.tensor
    backward = forward * (3 if choice.recompute else 2)
    gathers = 6 * (1.5 if choice.recompute else 1.0) * gather_ms(problem, choice.tensor)
    message = 2 * (data - 1) / data * profile.layer_weights_MB / choice.tensor / 2
    per_MB = _per_megabyte(profile, choice.tensor, data)  # noqa: N806
    sharding = message / 2 * per_MB if choice.sharded else 0.0
    synced = _overlapped(message * per_MB * profile.overlap, backward * profile.overlap, profile.overlap)
    return forward + backward + gathers + sharding, forward + synced + gathers + sharding


def vocabulary_ms(problem: GalvatronProblem, tensor: int, *, sharded: bool) -> float:
    """Milliseconds of embedding and head per microbatch, without the reduction of gradients."""
    profile, data = problem.profile, problem.devices // tensor
    forward = profile.vocabulary_ms * problem.samples(tensor) / tensor
    per_MB = _per_megabyte(profile, tensor, data) * (data - 1) / data  # noqa: N806
    gather = profile.vocabulary_states_MB[tensor] / 4 / 2 * per_MB * (0.5 if sharded else 0.0)
    return _beside(gather, forward, profile) + _beside(gather, 2 * forward, profile) + 2 * gather_ms(problem, tensor)


def gather_ms(problem: GalvatronProblem, tensor: int) -> float:
    """Milliseconds to gather the activations of a microbatch over the tensor axis, two bytes an element."""
    if tensor == 1:
        return 0.0
    size = problem.samples(tensor) * problem.sequence * problem.hidden * 2 / 2**20
    measured = problem.profile.gather_ms.get((tensor, int(size))) if size == int(size) else None
    slope, rest = problem.profile.gather_fit[tensor]
    return measured if measured is not None else slope * size + rest


def used_memory(problem: GalvatronProblem, plan: GalvatronPlan) -> int:
    """Megabytes of a device: layers, vocabulary, context, and the buffer of the largest gather."""
    layers = sum(layer_MB(problem, choice) for choice in plan.layers)
    widest = max([plan.vocabulary_tensor, *(choice.tensor for choice in plan.layers)])
    vocabulary = vocabulary_MB(problem, plan.vocabulary_tensor, sharded=plan.vocabulary_sharded)
    return layers + vocabulary + buffer_MB(problem, widest)


def layer_MB(problem: GalvatronProblem, choice: LayerChoice) -> int:  # noqa: N802
    """Megabytes of a layer, rounded up: weights, gradients, moments (4 in all), and what it keeps of a microbatch."""
    profile, samples = problem.profile, problem.samples(choice.tensor)
    states = 4 * profile.layer_weights_MB / choice.tensor
    states *= _shard(problem, problem.devices // choice.tensor, sharded=choice.sharded)
    kept = profile.layer_checkpoint_MB / choice.tensor if choice.recompute else profile.layer_kept_MB[choice.tensor]
    return math.ceil(states + kept * samples)


def vocabulary_MB(problem: GalvatronProblem, tensor: int, *, sharded: bool) -> int:  # noqa: N802
    """Megabytes of embedding and head and of the context, rounded up."""
    profile, data = problem.profile, problem.devices // tensor
    ratio = 1.0 if data == 1 else _shard(problem, data, sharded=sharded)
    kept = profile.vocabulary_kept_MB[tensor] * problem.samples(tensor)
    return math.ceil(profile.vocabulary_states_MB[tensor] * ratio + kept + CONTEXT_MB)


def buffer_MB(problem: GalvatronProblem, tensor: int) -> int:  # noqa: N802
    """Megabytes of the buffer for activations gathered at the widest tensor degree."""
    share = problem.batch / problem.chunks / (problem.devices // tensor)
    return int(share * problem.hidden * problem.sequence * 2 / 2**20)


def _shard(problem: GalvatronProblem, data: int, *, sharded: bool) -> float:
    """The part of the states that one of `data` devices holds: zero3, or zero2, which keeps the weights."""
    more = 1.0 if problem.chunks == 1 else WITH_GRADIENTS
    part = 1 / data + MARGIN
    return part * more if sharded else (7 / 8 * part + 1 / 8) * more


def _per_megabyte(profile: GalvatronProfile, tensor: int, data: int) -> float:
    """Milliseconds per megabyte of an all-reduce over `data` devices, neighbours where there is no tensor axis."""
    if data == 1:
        return 0.0
    return 1 / (profile.near_bandwidth if tensor == 1 else profile.far_bandwidth)[data]


def _overlapped(reducing: float, backward: float, slowdown: float) -> float:
    """Two at once, each slowed down, then the rest of the longer one alone."""
    return min(reducing, backward) + abs(reducing - backward) / slowdown


def _beside(sending: float, computing: float, profile: GalvatronProfile) -> float:
    """Computing, slowed down while something is sent."""
    slowed = computing * profile.overlap
    return sending + (slowed - sending) / profile.overlap if slowed > sending else sending


def _check(problem: GalvatronProblem, plan: GalvatronPlan) -> None:
    """Raises IllegalPlanError for a wrong number of layers and degrees that leave a device without a sample."""
    if len(plan.layers) != problem.layers:
        raise IllegalPlanError(f"the plan has {len(plan.layers)} layers of {problem.layers}; place every layer")
    for tensor in {plan.vocabulary_tensor, *(choice.tensor for choice in plan.layers)}:
        if problem.devices % tensor or problem.samples(tensor) < 1:
            raise IllegalPlanError(f"tensor degree {tensor} leaves devices without a sample; choose a larger one")
