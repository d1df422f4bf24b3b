"""Family 9: python numbers handed from block to block."""
# ruff: noqa: D102

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Base


class NumberBlock(nn.Module):
    """A layer that counts a number up."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, h: Tensor, depth: float) -> tuple[Tensor, float]:
        return h + torch.tanh(self.fc(h)), depth + 1


class Chain(Base):
    """Layers that count a number up, which divides the loss."""

    n = 2
    start: float = 0

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(NumberBlock() for _ in range(self.n))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, depth = torch.tanh(self.one(x)), self.start
        for block in self.blocks:
            h, depth = block(h, depth)
        return f.cross_entropy(self.head(h), y) / depth


class Chain1(Chain):
    """One of them."""

    n = 1


class Chain2(Chain):
    """Two of them."""

    n = 2


class Chain3(Chain):
    """Three of them."""

    n = 3


class Chain3From5(Chain):
    """Three of them, counting from five."""

    n, start = 3, 5


class Chain4From7(Chain):
    """Four of them, counting from seven."""

    n, start = 4, 7


class Chain3Float(Chain):
    """Three of them, counting from a half."""

    n, start = 3, 0.5


class Chain3Used(Chain):
    """Three of them, given features times the number."""

    n, start = 3, 5

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, depth = torch.tanh(self.one(x)), self.start
        for block in self.blocks:
            h, depth = block(h * depth, depth)
        return f.cross_entropy(self.head(h), y)


class NumberUsedInside(nn.Module):
    """A layer that scales by a number and halves it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, h: Tensor, scale: float) -> tuple[Tensor, float]:
        return h + torch.tanh(self.fc(h)) * scale, scale * 0.5


class NumberPassed(Base):
    """Each block scales by a number that the one before halved."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(NumberUsedInside() for _ in range(4))

    def between(self, h: Tensor) -> Tensor:
        scale = 1.0
        for block in self.blocks:
            h, scale = block(h, scale)
        return h


class Numbered(nn.Module):
    """A layer that returns a number plus one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, h: Tensor, n: int) -> tuple[Tensor, int]:
        return torch.tanh(self.fc(h)), n + 1


class TwoNumbered(Base):
    """Twice such a block, called with different numbers, used within."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Numbered() for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, n = self.blocks[0](torch.tanh(self.one(x)), 3)
        h, m = self.blocks[1](h * n, 10)
        return f.cross_entropy(self.head(h), y) / m


class SharedNumbered(Base):
    """One block called twice with unlike numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Numbered()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, n = self.block(torch.tanh(self.one(x)), 3)
        h, m = self.block(h, 10)
        return f.cross_entropy(self.head(h), y) / (m + n)


class DepthBlock(nn.Module):
    """A layer on a dict: features and a depth."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, state: dict[str, Any]) -> dict[str, Any]:
        return {"h": state["h"] + torch.tanh(self.fc(state["h"])), "depth": state["depth"] + 1}


class DepthOnly(Base):
    """A python number counted through the blocks' dicts, no aux."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(DepthBlock() for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        state: dict[str, Any] = {"h": torch.tanh(self.one(x)), "depth": 0}
        for block in self.blocks:
            state = block(state)
        return f.cross_entropy(self.head(state["h"]), y) / state["depth"]


class MutatingBlock(nn.Module):
    """A layer that changes the dict it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, state: dict[str, Any]) -> None:
        state["h"] = state["h"] + torch.tanh(self.fc(state["h"]))
        state["n"] += 1


class MutatedDict(Base):
    """Blocks change a dict that they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(MutatingBlock() for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        state: dict[str, Any] = {"h": torch.tanh(self.one(x)), "n": 0}
        for block in self.blocks:
            block(state)
        return f.cross_entropy(self.head(state["h"]), y) / state["n"]


class ReturnedNumber(nn.Module):
    """A layer that adds the number of features."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, h: Tensor, past: int) -> tuple[Tensor, int]:
        return torch.tanh(self.fc(h)), past + h.shape[-1]


class PastLength(Base):
    """Each of four returns how many features have passed; the sum is used at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(ReturnedNumber() for _ in range(4))

    def between(self, h: Tensor) -> Tensor:
        past = 0
        for b in self.blocks:
            h, past = b(h, past)
        return h * (past / 64)


class FlagReturned(nn.Module):
    """A layer that turns a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, h: Tensor, even: bool) -> tuple[Tensor, bool]:
        return torch.tanh(self.fc(h)) * (2.0 if even else 1.0), not even


class FlagPassed(Base):
    """A flag turned by each of four blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(FlagReturned() for _ in range(4))

    def between(self, h: Tensor) -> Tensor:
        even = True
        for b in self.blocks:
            h, even = b(h, even)
        return h * 3.0 if even else h


_PLAIN = (
    Chain1, Chain2, Chain3, Chain3From5, Chain4From7, Chain3Float, Chain3Used, NumberPassed, TwoNumbered,
    SharedNumbered, DepthOnly, MutatedDict, PastLength, FlagPassed,
)  # fmt: skip
ENTRIES = tuple(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN)
