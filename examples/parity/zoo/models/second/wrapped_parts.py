"""Family 9: parts in a checkpoint, a script or another wrapper, and parts that branch on values."""
# ruff: noqa: D102

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Base


class ReentrantCheckpoint(nn.Module):
    """checkpoint(use_reentrant=True) and checkpoint_sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)))
        self.last = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h: Tensor = checkpoint_sequential(  # type: ignore[no-untyped-call]  # torch does not type it
            self.body, 2, self.stem(x), use_reentrant=True
        )
        return f.cross_entropy(self.head(checkpoint(self.last, h, use_reentrant=True)), y)


class NormInCheckpoint(Base):
    """Batch norm inside a checkpoint: statistics are written twice, in forward and in the recomputation."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU())

    def between(self, h: Tensor) -> Tensor:
        return checkpoint(self.block, h, use_reentrant=False)


class NormInReentrant(Base):
    """Batch norm in checkpoint(use_reentrant=True)."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU())

    def between(self, h: Tensor) -> Tensor:
        return checkpoint(self.block, h, use_reentrant=True)


class Counting(nn.Module):
    """A layer that counts its calls in a buffer."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        return self.fc(h).relu()


class CountInCheckpoint(Base):
    """A counter of calls inside a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Counting()

    def between(self, h: Tensor) -> Tensor:
        return checkpoint(self.block, h, use_reentrant=False)


def scripted(what: Any) -> Any:
    """torch.jit.script, without its warning that it is old."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(what)


def swish(x: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return x * torch.sigmoid(x)


scripted_swish = scripted(swish)


class ScriptedActivation(Base):
    """@torch.jit.script on an activation, as timm had it."""

    def between(self, h: Tensor) -> Tensor:
        return scripted_swish(h)


class ScriptedPart(Base):
    """A submodule through torch.jit.script."""

    def __init__(self) -> None:
        super().__init__()
        self.block = scripted(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)))

    def between(self, h: Tensor) -> Tensor:
        return self.block(h)


class CompiledPart(Base):
    """A submodule through torch.compile."""

    def __init__(self) -> None:
        super().__init__()
        self.block = torch.compile(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)), backend="eager")

    def between(self, h: Tensor) -> Tensor:
        return self.block(h)


class DataParallelPart(Base):
    """nn.DataParallel around the body, as old code has it."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.DataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)))

    def between(self, h: Tensor) -> Tensor:
        return self.block(h)


class BranchBlock(nn.Module):
    """A layer that branches on values."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, h: Tensor) -> Tensor:
        h = self.fc(h)
        if h.sum() > 1e9:
            return h
        return torch.tanh(h)


class OpaqueBranch(Base):
    """A submodule that branches on values."""

    def __init__(self) -> None:
        super().__init__()
        self.block = BranchBlock()

    def between(self, h: Tensor) -> Tensor:
        return self.block(h)


class BranchBlockOf8(BranchBlock):
    """The same of eight features."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)


class OpaqueFirst(Base):
    """An opaque part at the very start."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(BranchBlockOf8())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(self.block(x), y)


class Signed(nn.Module):
    """The other sign, by a branch on values."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            return x
        return -x


class OpaquePlainInput(nn.Module):
    """An opaque part with no gradient into it and no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.sign = Signed()
        self.a, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(torch.tanh(self.a(self.sign(x)))), y)


_PLAIN = (
    ReentrantCheckpoint, NormInCheckpoint, NormInReentrant, CountInCheckpoint, ScriptedActivation, ScriptedPart,
    CompiledPart, DataParallelPart, OpaqueBranch, OpaqueFirst, OpaquePlainInput,
)  # fmt: skip
ENTRIES = tuple(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN)
