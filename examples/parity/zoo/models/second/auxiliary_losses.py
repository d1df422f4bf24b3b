"""Family 9: auxiliary losses, kept on self or handed from block to block."""
# ruff: noqa: D102

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Base


class GatedRouter(nn.Module):
    """A mixture block that keeps its auxiliary loss on self."""

    def __init__(self, product: bool) -> None:
        super().__init__()
        self.gate, self.product = nn.Linear(16, 4), product
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.aux_loss: Any = None

    def forward(self, h: Tensor) -> Tensor:
        p = self.gate(h).softmax(-1)
        chosen = f.one_hot(p.argmax(-1), 4).to(p.dtype)
        self.aux_loss = (p.mean(0) * chosen.mean(0)).sum() * 4 if self.product else (p * chosen).sum(-1).pow(2).mean()
        return h + sum(p[:, i : i + 1] * expert(h) for i, expert in enumerate(self.experts))


class StoredBalance(Base):
    """Blocks keep Switch's balance loss on self; the model adds them up."""

    product = True

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(GatedRouter(self.product) for _ in range(2))

    def between(self, h: Tensor) -> Tensor:
        for block in self.blocks:
            h = block(h)
        return h

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().forward(x, y)
        return loss + 0.1 * sum(m.aux_loss for m in self.modules() if isinstance(m, GatedRouter))


class StoredPenalty(StoredBalance):
    """The same with an auxiliary loss that is a mean."""

    product = False


class AuxBlock(nn.Module):
    """A layer on a dict: features, an auxiliary loss, a depth."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, state: dict[str, Any]) -> dict[str, Any]:
        h = torch.tanh(self.fc(state["h"]))
        return {"h": state["h"] + h, "aux": state["aux"] + h.abs().mean(), "depth": state["depth"] + 1}


class PassedAux(Base):
    """An auxiliary loss without dimensions travels through the layers, with a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(AuxBlock() for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        state: dict[str, Any] = {"h": torch.tanh(self.one(x)), "aux": x.new_zeros(()), "depth": 0}
        for block in self.blocks:
            state = block(state)
        return f.cross_entropy(self.head(state["h"]), y) + 0.1 * state["aux"] / state["depth"]


class TupleBlock(nn.Module):
    """A layer that adds to an auxiliary loss."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, h: Tensor, aux: Tensor | float) -> tuple[Tensor, Tensor | float]:
        g = torch.tanh(self.fc(h))
        return h + g, aux + g.abs().mean()


class AuxTuple(Base):
    """aux in a tuple, from x.new_zeros(())."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TupleBlock() for _ in range(4))

    def start(self, x: Tensor) -> Tensor | float:
        return x.new_zeros(())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, aux = torch.tanh(self.one(x)), self.start(x)
        for block in self.blocks:
            h, aux = block(h, aux)
        return f.cross_entropy(self.head(h), y) + 0.1 * aux


class AuxFromNumber(AuxTuple):
    """aux starts as a python number."""

    def start(self, x: Tensor) -> float:
        return 0.0


class OneList(nn.Module):
    """A layer that extends a list of auxiliary losses."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, h: Tensor, kept: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        h = torch.tanh(self.fc(h))
        return h, [*kept, h.abs().mean()]


class GrowingList(Base):
    """A list of auxiliary losses that each of six blocks extends; divided by its length."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(OneList() for _ in range(6))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.tanh(self.one(x))
        kept: list[Tensor] = []
        for b in self.blocks:
            h, kept = b(h, kept)
        return f.cross_entropy(self.head(h), y) + sum(kept) / len(kept)


_PLAIN = (StoredBalance, StoredPenalty, PassedAux, AuxTuple, AuxFromNumber, GrowingList)
ENTRIES = tuple(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN)
