"""Family 9: numbers, lists and generators that the model keeps."""
# ruff: noqa: D102

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Base


class SeededLayerDrop(Base):
    """Layers dropped by a python generator of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.rng: Any = random.Random(0)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def between(self, h: Tensor) -> Tensor:
        for block in self.blocks:
            if not self.training or self.rng.random() > 0.5:
                h = h + torch.tanh(block(h))
        return h


class NumpyLayerDrop(SeededLayerDrop):
    """The same by numpy's."""

    def __init__(self) -> None:
        super().__init__()
        state = np.random.RandomState(1)
        self.rng = SimpleNamespace(random=lambda: state.uniform())


class CycledHeads(Base):
    """itertools.cycle picks the task's head of this step."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(16, 4) for _ in range(2))
        self.order = itertools.cycle([0, 1])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.heads[next(self.order)](self.features(x)), y)


class NamespaceCounter(Base):
    """A counter of steps in an object that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.state = SimpleNamespace(step=0)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.training:
            self.state.step += 1
        return super().forward(x, y) * min(1.0, self.state.step / 4)


_STEPS: dict[int, int] = {}


class GlobalCounter(Base):
    """A counter in a dict of the module, kept by the model's id."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        _STEPS[id(self)] = _STEPS.get(id(self), 0) + 1
        return super().forward(x, y) * (0.5 if _STEPS[id(self)] < 2 else 1.0)


class ListCounter(Base):
    """A list of the sizes seen, whose length is a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen.append(x.shape[0])
        return super().forward(x, y) / len(self.seen)


class ListOfOnes(Base):
    """A list that grows by the same number whatever the rows: its length a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen.append(1)
        return super().forward(x, y) / len(self.seen)


class ListToggle(Base):
    """Alternating heads by a list's length."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[None] = []
        self.other = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen.append(None)
        head = self.head if len(self.seen) % 2 else self.other
        return f.cross_entropy(head(self.features(x)), y)


class FloatEma(Base):
    """A moving average of the loss as a python float, by .item()."""

    def __init__(self) -> None:
        super().__init__()
        self.ema = 1.0

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().forward(x, y)
        self.ema = 0.9 * self.ema + 0.1 * loss.item()
        return loss / self.ema


class LoggedItems(Base):
    """Metrics kept as python numbers on self: .item(), never read by the model."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: dict[str, float] = {}

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.head(self.features(x))
        loss = f.cross_entropy(logits, y)
        self.metrics = {"loss": loss.item(), "accuracy": (logits.argmax(-1) == y).double().mean().item()}
        return loss


class LateNamespace(Base):
    """A counter in a namespace whose effect comes after the second step."""

    def __init__(self) -> None:
        super().__init__()
        self.state = SimpleNamespace(step=0)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.training:
            self.state.step += 1
        return super().forward(x, y) * (2.0 if self.state.step == 3 else 1.0)


class LateAttribute(Base):
    """The same as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.step += 1
        return super().forward(x, y) * (2.0 if self.step == 3 else 1.0)


class LateDict(Base):
    """The same in a dict on self."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"step": 0}

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.state["step"] += 1
        return super().forward(x, y) * (2.0 if self.state["step"] == 3 else 1.0)


class LateClass(Base):
    """The same on the class."""

    step = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).step = 0

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        type(self).step += 1
        return super().forward(x, y) * (2.0 if self.step == 3 else 1.0)


_COUNT = [0]


class LateGlobal(Base):
    """A counter at the top of the file, its effect late."""

    def __init__(self) -> None:
        super().__init__()
        _COUNT[0] = 0

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        _COUNT[0] += 1
        return super().forward(x, y) * (2.0 if _COUNT[0] == 3 else 1.0)


class LateSub(nn.Module):
    """A counter of calls, doubling at the third."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, h: Tensor) -> Tensor:
        self.seen += 1
        return h * (2.0 if self.seen == 3 else 1.0)


class LateSubmodule(Base):
    """A counter in a submodule, late."""

    def __init__(self) -> None:
        super().__init__()
        self.sub = LateSub()

    def between(self, h: Tensor) -> Tensor:
        return self.sub(h)


class LateHook(Base):
    """A counter in a hook's closure, late."""

    def __init__(self) -> None:
        super().__init__()
        seen: list[int] = []

        def hook(module: nn.Module, args: Any, out: Tensor) -> Tensor:
            seen.append(1)
            return out * (2.0 if len(seen) == 3 else 1.0)

        self.two.register_forward_hook(hook)


_PLAIN = (
    SeededLayerDrop, NumpyLayerDrop, CycledHeads, NamespaceCounter, GlobalCounter, ListCounter, ListOfOnes, ListToggle,
    FloatEma, LoggedItems, LateNamespace, LateAttribute, LateDict, LateClass, LateGlobal, LateSubmodule, LateHook,
)  # fmt: skip
ENTRIES = tuple(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN)
