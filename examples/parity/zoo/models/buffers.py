"""Family 4: buffers that forward writes."""
# ruff: noqa: D102

from __future__ import annotations

import copy

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry


class Kept(nn.Module):
    """Two products; between them something with a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 16)
        self.two = nn.Linear(16, 4)

    def kept(self, h: Tensor) -> Tensor:
        """Features after what the memory does to them."""
        return h

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.two(torch.tanh(self.kept(self.one(x)))), y)


class StepCounter(Kept):
    """A loss weight that warms up with a counter of forwards."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.steps += 1
        return torch.clamp(self.steps / 10, max=1.0) * super().forward(x, y)


class CountedOnly(Kept):
    """num_batches_tracked by hand: counted, never read."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))

    def kept(self, h: Tensor) -> Tensor:
        if self.training:
            self.calls.add_(1)
        return h


class RowsSeen(Kept):
    """A counter of rows."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def kept(self, h: Tensor) -> Tensor:
        self.seen += h.shape[0]
        return h


class RunningScale(Kept):
    """A running mean of magnitudes, kept by hand, that divides what follows."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(16))

    def kept(self, h: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.scale.mul_(0.9).add_(0.1 * h.abs().mean(0))
        return h / self.scale


class RebornBuffer(Kept):
    """A buffer that is assigned, not written: self.mean = ..."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def kept(self, h: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h - self.mean


class LerpedCentre(Kept):
    """DINO's centre: lerp_ toward the batch's mean, used before it is written."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(1, 16), persistent=True)

    def kept(self, h: Tensor) -> Tensor:
        out = h - self.centre
        self.centre.lerp_(h.detach().mean(0, keepdim=True), 0.1)
        return out


class UnsavedBuffer(Kept):
    """A buffer that is not persistent, yet changes what comes next."""

    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(16), persistent=False)

    def kept(self, h: Tensor) -> Tensor:
        out = h + self.last
        self.last.copy_(h.detach().max(0).values)
        return out


class VectorQuantised(nn.Module):
    """VQ-VAE: a codebook kept by exponential averages of what fell on each code."""

    codes: Tensor
    counts: Tensor
    sums: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 6), nn.Linear(6, 8)
        codes = torch.randn(5, 6)
        self.register_buffer("codes", codes)
        self.register_buffer("counts", torch.ones(5))
        self.register_buffer("sums", codes.clone())

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x)
        nearest = torch.cdist(z, self.codes).argmin(-1)
        taken = self.codes[nearest]
        if self.training:
            with torch.no_grad():
                hot = f.one_hot(nearest, 5).to(z.dtype)
                self.counts.mul_(0.9).add_(hot.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(hot.t() @ z, alpha=0.1)
                self.codes.copy_(self.sums / self.counts[:, None])
        made = self.decode(z + (taken - z).detach())
        return f.mse_loss(made, x) + 0.25 * f.mse_loss(z, taken.detach())


class EmaTeacher(nn.Module):
    """Mean teacher: a copy that follows the student inside forward."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        for parameter in self.teacher.parameters():
            parameter.data.mul_(0.8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)
            wanted = self.teacher(x)
        out = self.student(x)
        return f.cross_entropy(out, y) + f.mse_loss(out, wanted)


class MomentumQueue(nn.Module):
    """MoCo: a queue of keys, its pointer, both written."""

    queue: Tensor
    pointer: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 6)
        self.register_buffer("queue", f.normalize(torch.randn(6, 16), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        q = f.normalize(self.net(query), dim=1)
        with torch.no_grad():
            k = f.normalize(self.net(key), dim=1)
        logits = torch.cat(((q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()), 1) / 0.2
        with torch.no_grad():
            self.queue.copy_(torch.cat((self.queue[:, len(k) :], k.T), 1))
            self.pointer.copy_((self.pointer + len(k)) % 16)
        return f.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


class ObservedRange(Kept):
    """Quantisation-aware: the smallest and the largest value so far."""

    low: Tensor
    high: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor(0.0))
        self.register_buffer("high", torch.tensor(0.0))

    def kept(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            self.low.copy_(torch.minimum(self.low, h.min()))
            self.high.copy_(torch.maximum(self.high, h.max()))
        step = (self.high - self.low) / 15
        rounded = torch.round(h / step) * step
        return h + (rounded - h).detach()


class PositionTable(Kept):
    """A buffer that is only read: constants."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(-1, 1, 16), persistent=False)

    def kept(self, h: Tensor) -> Tensor:
        return h + self.table


class LastLoss(Kept):
    """The model remembers its last loss in a buffer."""

    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.tensor(0.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().forward(x, y)
        self.last.copy_(loss.detach())
        return loss


class HistoryAttribute(Kept):
    """A plain attribute that grows: a python list of detached means."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[Tensor] = []

    def kept(self, h: Tensor) -> Tensor:
        self.history.append(h.detach().mean())
        return h


class PythonSteps(Kept):
    """A python counter that turns a branch on after the first forward."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def kept(self, h: Tensor) -> Tensor:
        self.step += 1
        return h * 2 if self.step > 1 else h


_PLAIN = (
    StepCounter, CountedOnly, RowsSeen, RunningScale, RebornBuffer, LerpedCentre, UnsavedBuffer,
    EmaTeacher, ObservedRange,
    PositionTable, LastLoss, HistoryAttribute, PythonSteps,
)  # fmt: skip
ENTRIES = (
    *(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN),
    entry(VectorQuantised, "x: normal 8 8"),
    entry(MomentumQueue, "query: normal 8 8; key: normal 8 8"),
)
