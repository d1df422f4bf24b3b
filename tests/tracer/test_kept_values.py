"""What a model keeps outside of its parameters and buffers: refused where each step would find it another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from placer import tracer
from placer.errors import CaptureError

pytestmark = pytest.mark.in_turns

SHAPES = {"x": (8, 6)}
TABLE = torch.linspace(0.5, 1.5, 6)
COUNT = [0]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 6)

    def used(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.used(self.one(x)).pow(2).mean()


class Counts(Small):
    step = 0

    def used(self, h: Tensor) -> Tensor:
        self.step += 1
        return h


class CountsInClass(Small):
    step = 0

    def used(self, h: Tensor) -> Tensor:
        CountsInClass.step += 1
        return h


class CountsInFile(Small):
    def used(self, h: Tensor) -> Tensor:
        COUNT[0] += 1
        return h


class CountsInDict(Small):
    def __init__(self) -> None:
        super().__init__()
        self.kept, self.state = {"step": 0}, SimpleNamespace(flag=False)

    def used(self, h: Tensor) -> Tensor:
        self.kept["step"] += 1
        return h


class MarksMode(Small):
    """As RWKV does: weights are halved on the way into evaluation, and doubled on the way back."""

    halved = False

    def used(self, h: Tensor) -> Tensor:
        if self.training == self.halved:
            with torch.no_grad():
                self.one.weight.mul_(2.0 if self.training else 0.5)
            self.halved = not self.training
        return h * (2.0 if self.halved else 1.0)


class Grows(Small):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def used(self, h: Tensor) -> Tensor:
        self.seen.append(len(h))
        return h / len(self.seen)


class Queue(Small):
    def __init__(self) -> None:
        super().__init__()
        self.past: deque[Tensor] = deque(maxlen=3)

    def used(self, h: Tensor) -> Tensor:
        before = list(self.past)
        self.past.append(h.detach().mean(0))
        return sum((h - one for one in before), h)


class Average(Small):
    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(6)

    def used(self, h: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h - self.mean


class Previous(Small):
    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def used(self, h: Tensor) -> Tensor:
        made = h if self.last is None else h - self.last
        self.last = h.detach().mean(0)
        return made


class AverageInDict(Small):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Tensor] = {}

    def used(self, h: Tensor) -> Tensor:
        self.kept["mean"] = 0.9 * self.kept.get("mean", torch.zeros_like(h[0])) + h.detach().mean(0)
        return h - self.kept["mean"]


class RegistersLate(Small):
    def used(self, h: Tensor) -> Tensor:
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.ones(6, device=h.device))
        return h * self.get_buffer("table")


class CachesInABuffer(Small):
    """A table of positions in a buffer of no state dict, registered when it is wanted first."""

    slopes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.linspace(0.1, 1, 6), persistent=False)

    def made(self, h: Tensor) -> Tensor:
        return self.slopes * torch.arange(6, device=h.device)

    def used(self, h: Tensor) -> Tensor:
        table = getattr(self, "table", None)
        if table is None:
            table = self.made(h)
            self.register_buffer("table", table, persistent=False)
        return h * table


class CachesInANamedBuffer(CachesInABuffer):
    """Beside its name in `__init__`, as ALiBi's slopes of attention are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", None, persistent=False)


class CachesWeightsInABuffer(CachesInABuffer):
    def made(self, h: Tensor) -> Tensor:
        return self.one.bias.detach().exp()


class Notes(Small):
    """What is written and not read: a feature, a size, what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.feature: Tensor | None = None
        self.width, self.logged = 0, dict[str, Tensor]()

    def used(self, h: Tensor) -> Tensor:
        self.feature, self.width, self.logged = h, h.shape[1], {"mean": h.mean()}
        return h


class Caches(Small):
    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None
        self.tables: dict[int, Tensor] = {}

    def used(self, h: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(6, device=h.device).cos()
        if h.shape[1] not in self.tables:
            self.tables[h.shape[1]] = torch.arange(6, device=h.device).sin()
        return h * self.table + self.tables[h.shape[1]]


class CachesForALength(Small):
    """A table of positions as GPT-NeoX and ESM keep it: of frequencies in a buffer, beside the length it is for."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.linspace(0.1, 1, 3))
        self.length: int | None = None
        self.table: Tensor | None = None

    def made(self, h: Tensor) -> Tensor:
        angles = torch.arange(2, device=h.device)[:, None] * self.frequencies
        return torch.cat([angles.cos().reshape(-1)[:3], angles.sin().reshape(-1)[:3]])

    def used(self, h: Tensor) -> Tensor:
        if self.length != h.shape[1]:
            self.length, self.table = h.shape[1], self.made(h)
        assert self.table is not None
        return h * self.table


class CachesAndCounts(CachesForALength):
    calls = 0

    def used(self, h: Tensor) -> Tensor:
        self.calls += 1
        return super().used(h) * self.calls


class CachesAndMarks(CachesForALength):
    called = False

    def used(self, h: Tensor) -> Tensor:
        scale, self.called = 2.0 if self.called else 1.0, True
        return super().used(h) * scale


class CachesOfTheBatch(CachesForALength):
    def made(self, h: Tensor) -> Tensor:
        return h.detach().mean(0)


class CachesOfWeights(CachesForALength):
    def made(self, h: Tensor) -> Tensor:
        return self.one.bias.detach().exp()


class CachesWhatItWrites(CachesForALength):
    def used(self, h: Tensor) -> Tensor:
        self.frequencies.mul_(1.1)
        return super().used(h)


class CachesStatistics(CachesForALength):
    norm: nn.BatchNorm1d

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def made(self, h: Tensor) -> Tensor:
        assert self.norm.running_mean is not None
        return self.norm.running_mean + 1

    def used(self, h: Tensor) -> Tensor:
        return super().used(self.norm(h))


class ReadsConstants(Small):
    def __init__(self) -> None:
        super().__init__()
        self.more = {"scale": torch.full((6,), 2.0)}
        self.one.register_forward_hook(lambda module, given, made: made * self.more["scale"])

    def used(self, h: Tensor) -> Tensor:
        return h * TABLE.to(h.dtype) * self.more["scale"].to(h.dtype)


class Frozen(dict[str, object]):
    """A configuration as model libraries keep one: whoever writes to it hears that it may not be written."""

    def __setitem__(self, key: str, value: object) -> None:
        raise TypeError("frozen")

    def update(self, *given: object, **named: object) -> None:
        raise TypeError("frozen")

    def clear(self) -> None:
        raise TypeError("frozen")


class HoldsFrozen(Small):
    def __init__(self) -> None:
        super().__init__()
        self.settings, self._settings = Frozen(scale=2.0), Frozen(shift=1.0)

    def used(self, h: Tensor) -> Tensor:
        return h * float(str(self.settings["scale"])) + float(str(self._settings["shift"]))


class MovesATable(Small):
    """As schedules of diffusion models do: a table that is no buffer goes where its inputs lie, and is kept there."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = SimpleNamespace(rates=torch.linspace(0.5, 1.5, 6))

    def used(self, h: Tensor) -> Tensor:
        self.schedule.rates = self.schedule.rates.to(device=h.device)
        rates: Tensor = self.schedule.rates
        return h * rates.to(h.dtype)


class NeedsValues(Small):
    """Its factory reads values, which meta has none of."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 3)]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (Counts, "counts in step"),
        (CountsInClass, "counts in CountsInClass.step"),
        (CountsInFile, "COUNT[0]"),
        (CountsInDict, "counts in kept['step']"),
        (MarksMode, "sets halved, a plain value, to False in training and to True in evaluation"),
        (Grows, "counts in len(seen)"),
        (Queue, "counts in len(past)"),
        (Average, "replaces the tensor mean"),
        (Previous, "replaces the tensor last"),
        (AverageInDict, "replaces the tensor kept['mean']"),
        (RegistersLate, "registers the buffer table"),
        (CachesAndCounts, "counts in calls"),
        (CachesAndMarks, "with 2.0 in place of 1.0"),
        (CachesOfTheBatch, "reads what an earlier one has left"),
        (CachesOfWeights, "reads what an earlier one has left"),
        (CachesWeightsInABuffer, "reads what an earlier one has left"),
        (CachesWhatItWrites, "a step after the first"),
        (CachesStatistics, "reads what an earlier one has left"),
    ],
)
def test_what_each_step_would_find_another_is_refused(made: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(CaptureError) as refused:
        tracer.capture(made(), batch=SHAPES)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "made",
    [
        Notes, Caches, CachesForALength, CachesInABuffer, CachesInANamedBuffer, ReadsConstants,
        HoldsFrozen, MovesATable,
    ],
)  # fmt: skip
def test_what_stays_or_is_not_read_is_captured(made: Callable[[], nn.Module]) -> None:
    model = made()
    traced = tracer.trace(model, tracer.capture(made(), batch=SHAPES))
    x = torch.randn(8, 6)
    assert torch.equal(traced.module(x)[0], model(x))


def test_a_factory_that_reads_values_is_captured() -> None:
    assert tracer.capture(f"{__name__}:NeedsValues", batch=SHAPES).blocks


class OwnData(Small):
    """It gives a weight its own numbers, as libraries do that move them to where the inputs lie."""

    def used(self, h: Tensor) -> Tensor:
        self.one.weight.data = self.one.weight.data.to(h.device)
        return h


class OtherData(Small):
    def used(self, h: Tensor) -> Tensor:
        self.one.weight.data = self.one.bias.data.expand(6, 6)
        return h


def test_a_weight_may_be_given_its_own_data_and_no_other() -> None:
    tracer.capture(OwnData(), batch=SHAPES)
    with pytest.raises(CaptureError, match=r"assigns to \.data of a tensor at .*test_kept_values.py"):
        tracer.capture(OtherData(), batch=SHAPES)
