"""Family 7: algorithms in a forward: recurrences, transport, fixed points, gradients of one's own."""
# ruff: noqa: D102

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from examples.parity.zoo.entry import entry


class Algorithm(nn.Module):
    """Two products; between them an algorithm on sixteen numbers a row, or four by four."""

    def __init__(self, out: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.head = nn.Linear(out, 4)

    def steps(self, h: Tensor) -> Tensor:
        """What is computed of the features of the rows."""
        return h

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.steps(self.first(x))), y)


class LinearRecurrence(nn.Module):
    """A gated recurrence written out, its states stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value, self.head = nn.Linear(5, 8), nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = self.gate(x).sigmoid(), self.value(x)
        state, seen = torch.zeros_like(b[:, 0]), []
        for t in range(x.size(1)):
            state = a[:, t] * state + (1 - a[:, t]) * b[:, t]
            seen.append(state)
        return f.cross_entropy(self.head(torch.stack(seen, dim=1)).flatten(0, 1), y.flatten())


class CumulativeScan(LinearRecurrence):
    """The same kind by cumsum of logs and cumprod."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        log_a = f.logsigmoid(self.gate(x)).cumsum(1)
        states = torch.exp(log_a) * torch.cumsum(self.value(x) * torch.exp(-log_a), dim=1)
        decay = torch.cumprod(torch.sigmoid(x), dim=1)[..., :1]
        return f.cross_entropy(self.head(states * decay).transpose(1, 2), y)


class CrfForward(nn.Module):
    """A CRF: the forward algorithm and the score of the tags."""

    def __init__(self) -> None:
        super().__init__()
        self.emit, self.move = nn.Linear(5, 3), nn.Parameter(torch.randn(3, 3) / 3)

    def forward(self, x: Tensor, tags: Tensor) -> Tensor:
        e = self.emit(x)
        alpha = e[:, 0]
        for t in range(1, x.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + self.move, dim=1) + e[:, t]
        score = e.gather(2, tags[..., None]).squeeze(-1).sum(1) + self.move[tags[:, :-1], tags[:, 1:]].sum(1)
        return (alpha.logsumexp(1) - score).mean()


class StraightThrough(Algorithm):
    """Rounded, with the gradient of the identity; a binary gate."""

    def steps(self, h: Tensor) -> Tensor:
        rounded = h + (torch.round(h * 4) / 4 - h).detach()
        gate = (h > 0).to(h.dtype) - h.sigmoid().detach() + h.sigmoid()
        return rounded * gate


class ReversedGradient(torch.autograd.Function):
    """The identity, whose gradient is turned and scaled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -0.5 * gradient


class ClampedExp(torch.autograd.Function):
    """exp with a gradient that is bounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * y.clamp(max=1.0)


class OwnFunctions(Algorithm):
    """Two autograd.Functions."""

    def steps(self, h: Tensor) -> Tensor:
        turned: Tensor = ReversedGradient.apply(h)  # type: ignore[no-untyped-call]  # torch does not type it
        grown: Tensor = ClampedExp.apply(h)  # type: ignore[no-untyped-call]  # nor this
        return grown + turned


class HookedTensor(Algorithm):
    """register_hook scales a gradient."""

    def steps(self, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(lambda gradient: 0.1 * gradient)  # type: ignore[no-untyped-call]  # torch does not type it
        return h


class Checkpointed(Algorithm):
    """torch.utils.checkpoint inside."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def block(self, h: Tensor) -> Tensor:
        """What is computed twice."""
        return torch.tanh(self.b(torch.relu(self.a(h))))

    def steps(self, h: Tensor) -> Tensor:
        out = checkpoint(self.block, h, use_reentrant=False)
        assert isinstance(out, Tensor)
        return h + out


class InnerGradient(Algorithm):
    """torch.autograd.grad inside: a score of an energy."""

    def steps(self, h: Tensor) -> Tensor:
        energy = torch.logsumexp(self.head(h), dim=-1).sum()
        (score,) = torch.autograd.grad(energy, h, create_graph=True)
        return h - score


class Slopes(nn.Module):
    """A critic of rows, with the slopes of its scores where rows of two kinds are mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mixed = (0.3 * x + 0.7 * z).detach().requires_grad_()
        (slopes,) = torch.autograd.grad(self.critic(mixed).sum(), mixed, create_graph=True)
        return self.critic(x), self.critic(z), slopes


class PenaltyInPart(nn.Module):
    """WGAN-GP, its derivative in a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes = Slopes()

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        real, fake, slopes = self.slopes(x, z)
        penalty: Tensor = 10 * (slopes.norm(dim=1) - 1).square().mean()
        return real.mean() - fake.mean() + penalty


class MappedRows(Algorithm):
    """torch.vmap over rows of a function of one row."""

    def steps(self, h: Tensor) -> Tensor:
        return torch.vmap(lambda row: row * row.softmax(0).max() + row.flip(0))(h)


class SinkhornRows(Algorithm):
    """Optimal transport in each row: rows and columns of a square normalised in turn."""

    def steps(self, h: Tensor) -> Tensor:
        s = h.view(-1, 4, 4)
        for _ in range(4):
            s = s - s.logsumexp(2, keepdim=True)
            s = s - s.logsumexp(1, keepdim=True)
        return s.exp().flatten(1)


class SinkhornOverRows(Algorithm):
    """SwAV's: rows of the batch are part of the transport."""

    def steps(self, h: Tensor) -> Tensor:
        q = h.exp()
        for _ in range(3):
            q = q / q.sum(0, keepdim=True)
            q = q / q.sum(1, keepdim=True)
        return h * q.detach()


class NewtonSteps(Algorithm):
    """A fixed point of five steps, differentiated through."""

    def steps(self, h: Tensor) -> Tensor:
        z = torch.zeros_like(h)
        for _ in range(5):
            z = torch.tanh(0.3 * z + h)
        return z


class LoopedRows(Algorithm):
    """A python loop over the rows, stacked again."""

    def steps(self, h: Tensor) -> Tensor:
        return torch.stack([row / row.norm() for row in h])


class DifferentTypes(Algorithm):
    """A softmax in float32 whatever comes in, as Llama's norm does."""

    def steps(self, h: Tensor) -> Tensor:
        return h * h.float().softmax(-1).to(h.dtype) * 16


class TypedStep(Algorithm):
    """A branch on training, on a shape and on a dtype."""

    def steps(self, h: Tensor) -> Tensor:
        if self.training and h.shape[-1] == 16 and h.dim() == 2:
            return h * 2 if h.is_floating_point() else h
        return h


class BranchOnValue(Algorithm):
    """A branch on a number of the batch."""

    def steps(self, h: Tensor) -> Tensor:
        return h * 2 if h.abs().max() > 100 else h.tanh()


_ROWS = "x: normal 8 8; y: int4 8"
_PLAIN = (


    StraightThrough, OwnFunctions, HookedTensor, Checkpointed, InnerGradient, MappedRows, SinkhornRows,
    SinkhornOverRows, NewtonSteps, LoopedRows, TypedStep, BranchOnValue,
)  # fmt: skip
ENTRIES = (
    *(entry(build, _ROWS) for build in _PLAIN),
    entry(DifferentTypes, _ROWS, casts=True),
    *(entry(build, "x: normal 8 6 5; y: int3 8 6") for build in (LinearRecurrence, CumulativeScan)),
    entry(PenaltyInPart, "x: normal 8 8; z: normal 8 8"),
    entry(CrfForward, "x: normal 8 6 5; tags: int3 8 6"),
)
