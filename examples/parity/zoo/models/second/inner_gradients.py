"""Family 9: gradients taken inside of forward."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Base, Layers


class FunctionalInner(Base):
    """MAML: a step on half the features' own loss, then torch.func.functional_call with the new weights."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weights: dict[str, Tensor] = dict(self.head.named_parameters())
        h = self.features(x)
        inner = f.mse_loss(torch.func.functional_call(self.head, weights, (h,)), x[:, :4])
        grads = torch.autograd.grad(inner, tuple(weights.values()), create_graph=True)
        fast = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), grads, strict=True)}
        return f.cross_entropy(torch.func.functional_call(self.head, fast, (h,)), y)


class Forces(nn.Module):
    """An energy for each molecule, forces as its gradient: E.sum() by positions."""

    reduce = staticmethod(torch.sum)

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, positions: Tensor, energy: Tensor, forces: Tensor) -> Tensor:
        with torch.enable_grad():
            positions = positions.detach().requires_grad_(True)
            found = self.net(positions).sum((1, 2))
            pull = -torch.autograd.grad(self.reduce(found), positions, create_graph=True)[0]
        return f.mse_loss(found, energy) + 10 * f.mse_loss(pull, forces)


class ForcesOfMean(Forces):
    """The same of E.mean(): the gradient depends on the number of rows."""

    reduce = staticmethod(torch.mean)


class GradientPenalty(Layers):
    """WGAN-GP on points between real and fake ones."""

    def critic(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))[:, 0]

    def forward(self, x: Tensor, z: Tensor, share: Tensor) -> Tensor:
        mixed = (share * x + (1 - share) * z).requires_grad_(True)
        out = self.critic(mixed)
        slope = torch.autograd.grad(out, mixed, torch.ones_like(out), create_graph=True, retain_graph=True)[0]
        return self.critic(z).mean() - self.critic(x).mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()


class AdversarialSign(Base):
    """FGSM inside: the sign of the gradient of a mean loss, then a second pass."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        probe = x.detach().clone().requires_grad_(True)
        with torch.enable_grad():
            slope = torch.autograd.grad(f.cross_entropy(self.head(self.features(probe)), y), probe)[0]
        return f.cross_entropy(self.head(self.features(x + 0.05 * slope.sign())), y)


class AdversarialStep(Base):
    """FGM without sign: the gradient of the mean loss is added, so that its size counts the rows."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        probe = x.detach().clone().requires_grad_(True)
        with torch.enable_grad():
            slope = torch.autograd.grad(f.cross_entropy(self.head(self.features(probe)), y), probe)[0]
        return f.cross_entropy(self.head(self.features(x + 5.0 * slope)), y)


class JacobianPenalty(Base):
    """torch.func.jacrev under vmap: the norm of each row's Jacobian."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        def one(row: Tensor) -> Tensor:
            return torch.tanh(self.two(torch.tanh(self.one(row))))

        jacobian = torch.func.vmap(torch.func.jacrev(one))(x)
        return super().forward(x, y) + 0.01 * jacobian.pow(2).sum((1, 2)).mean()


_PLAIN = (FunctionalInner, AdversarialSign, AdversarialStep, JacobianPenalty)
ENTRIES = (
    *(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN),
    entry(Forces, "positions: normal 8 4 3; energy: normal 8; forces: normal 8 4 3"),
    entry(ForcesOfMean, "positions: normal 8 4 3; energy: normal 8; forces: normal 8 4 3"),
    entry(GradientPenalty, "x: normal 8 8; z: normal 8 8; share: unit 8 1"),
)
