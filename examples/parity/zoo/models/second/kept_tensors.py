"""Family 9: tensors that the model keeps, as buffers and as none."""
# ruff: noqa: D102

from __future__ import annotations

import collections

import torch
import torch.nn.functional as f
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Base, Layers


class PlainTensorCount(Base):
    """A plain tensor attribute that counts; nothing of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = torch.zeros(())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.steps = self.steps + 1
        return super().forward(x, y) / self.steps.to(x.dtype)


class PlainInplace(Base):
    """A plain tensor attribute counted in place."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = torch.zeros(())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.steps += 1
        return super().forward(x, y) / self.steps.to(x.dtype)


class PlainTensorEma(Base):
    """A moving average in a plain tensor attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(16, dtype=torch.float64)

    def between(self, h: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0).double()
        return h - self.mean.to(h.dtype)


class DictTensorEma(Base):
    """A moving average in a dict of plain tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.state: dict[str, Tensor] = {}

    def between(self, h: Tensor) -> Tensor:
        now = h.detach().mean(0)
        self.state["mean"] = now if "mean" not in self.state else 0.9 * self.state["mean"] + 0.1 * now
        return h - self.state["mean"]


class PreviousFeatures(Base):
    """The last batch's features, kept detached on self, in the loss of the next (temporal consistency)."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.features(x)
        loss = f.cross_entropy(self.head(h), y)
        if self.last is not None:
            loss = loss + (h.mean(0) - self.last).pow(2).sum()
        self.last = h.detach().mean(0)
        return loss


class DequeQueue(Base):
    """A deque of detached features of former batches as more negatives."""

    def __init__(self) -> None:
        super().__init__()
        self.past: collections.deque[Tensor] = collections.deque(maxlen=2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.features(x)
        loss = f.cross_entropy(self.head(h), y)
        if self.past:
            loss = loss + 0.1 * (h - torch.stack(list(self.past)).mean((0, 1))).pow(2).mean()
        self.past.append(h.detach().clone())
        return loss


class KeptAttention(Base):
    """An activation kept detached on self, for pictures."""

    def between(self, h: Tensor) -> Tensor:
        self.last = h.detach()
        self.norms = [one.norm() for one in h.detach().unbind(1)]
        return h


class StatefulRnn(nn.Module):
    """The hidden state of each row is kept in a buffer for the next batch."""

    hidden: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(5, 16)
        self.head = nn.Linear(16, 4)
        self.register_buffer("hidden", torch.zeros(8, 16), persistent=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.hidden
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        self.hidden = h.detach()
        return f.cross_entropy(self.head(h), y)


class CentreLoss(Base):
    """Centres of classes kept in a buffer, moved by index_add_."""

    centres: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centres", torch.zeros(4, 16))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.features(x)
        near = (h - self.centres[y]).pow(2).sum(1).mean()
        with torch.no_grad():
            self.centres.index_add_(0, y, 0.1 * (h - self.centres[y]))
        return f.cross_entropy(self.head(h), y) + 0.1 * near


class MemoryBank(Layers):
    """Instance discrimination: each example's feature is written to its place in a bank."""

    bank: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", f.normalize(torch.sin(torch.arange(320.0)).view(20, 16), dim=1))

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        h = f.normalize(self.features(x), dim=1)
        loss = f.cross_entropy(h @ self.bank.clone().t() / 0.5, index)
        with torch.no_grad():
            self.bank[index] = f.normalize(0.5 * self.bank[index] + 0.5 * h, dim=1)
        return loss


class CounterAtBothEnds(Base):
    """A counter is read by the first layer and the loss, and counted at the end."""

    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().forward(x * (1 + self.step.to(x.dtype)), y)
        self.step += 1
        return loss / self.step.to(x.dtype)


class CountedInFirst(Base):
    """Counted in the first layer, read by the last."""

    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.step.add_(1)
        h = torch.tanh(self.one(x)) * torch.rsqrt(self.step)
        h = torch.tanh(self.three(torch.tanh(self.two(h))))
        return f.cross_entropy(self.head(h) / self.step, y)


class AveragedTeacher(Base):
    """swa_utils.AveragedModel as a teacher, updated in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
        average = get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call]  # torch does not type it
        self.teacher = AveragedModel(self.student, multi_avg_fn=average)
        self.teacher.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.training:
            self.teacher.update_parameters(self.student)
        h = self.features(x)
        out = self.student(h)
        with torch.no_grad():
            soft = self.teacher(h).softmax(-1)
        return f.cross_entropy(out, y) + f.kl_div(out.log_softmax(-1), soft, reduction="batchmean")


_PLAIN = (
    PlainTensorCount, PlainInplace, PlainTensorEma, DictTensorEma, PreviousFeatures, DequeQueue, KeptAttention,
    CentreLoss, CounterAtBothEnds, CountedInFirst, AveragedTeacher,
)  # fmt: skip
ENTRIES = (
    *(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN),
    entry(StatefulRnn, "x: normal 8 6 5; y: int4 8"),
    entry(MemoryBank, "x: normal 8 8; index: int20 8"),
)
