"""Family 2: losses of losses, of several heads, by counts of rows, tokens and masks."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry


class Heads(nn.Module):
    """A body with a head for classes and one for numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU())
        self.classes = nn.Linear(16, 5)
        self.number = nn.Linear(16, 1)

    def terms(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy and squared error."""
        h = self.body(x)
        return f.cross_entropy(self.classes(h), y), f.mse_loss(self.number(h).squeeze(-1), z)

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return self.combined(*self.terms(x, y, z))

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        """The loss of two losses."""
        return one + two


class PlainSum(Heads):
    """Cross entropy plus mse."""


class StackedMeans(Heads):
    """torch.stack of two means, summed."""

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        return torch.stack([one, two]).sum()


class StackedMean(Heads):
    """torch.stack of two means, averaged."""

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        return torch.stack([one, two]).mean()


class CatOfTerms(Heads):
    """Concatenated after unsqueeze, weighted by a vector, summed."""

    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor([1.0, 0.25]))

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        return (torch.cat((one.unsqueeze(0), two.unsqueeze(0))) * self.weight).sum()


class PythonSum(Heads):
    """sum([...]) / len([...])."""

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        terms = [one, 0.5 * two, one]
        return sum(terms, torch.zeros(())) / len(terms)


class ProductOfLosses(Heads):
    """One loss times the other."""

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        return one * two


class WorseLoss(Heads):
    """The larger of two losses."""

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        return torch.max(one, 1.5 * two)


class LogOfMean(Heads):
    """The log of a mean."""

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        return torch.log1p(two) + one


class DetachedBalance(Heads):
    """Terms brought to one size by each other's detached values."""

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        return one + two * (one / two).detach()


class SumOfMean(Heads):
    """mse(...).sum(): a mean, summed by a careful user."""

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        return two.sum() + one.mean()


class MeanAndConstant(Heads):
    """Numbers beside means: BYOL's `2 - 2 * cosine`, and one that only lifts the loss."""

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        return (2 - 2 * torch.tanh(one.new_ones(()) * 0.3) * two) + (1.5 + one) - 0.25


class BootstrappedViews(Heads):
    """BYOL's loss of two views, the second without a gradient."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        h = self.body(x)
        with torch.no_grad():
            other = self.body(x.flip(1))
        return 2 - 2 * f.cosine_similarity(h, other, dim=-1).mean() + f.cross_entropy(self.classes(h), y)


class DottedTerms(Heads):
    """A dot product of terms and weights that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.tensor([0.4, 0.6]))

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        return torch.dot(torch.stack((one, two)), self.mix.softmax(0))


class UncertainTasks(Heads):
    """Kendall's weights: each task's variance is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(2))

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        return (torch.stack((one, two)) * torch.exp(-self.log_variance) + self.log_variance).sum()


class UncertainScalars(Heads):
    """The same with a scalar for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.s1 = nn.Parameter(torch.zeros(()))
        self.s2 = nn.Parameter(torch.zeros(()))

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        return torch.exp(-self.s1) * one + self.s1 + torch.exp(-self.s2) * two + self.s2


class SumOverMean(Heads):
    """A summed term beside a mean one."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        h = self.body(x)
        summed = f.mse_loss(self.number(h).squeeze(-1), z, reduction="sum")
        return f.cross_entropy(self.classes(h), y) + 0.1 * summed


class OverBatchSize(Heads):
    """A sum divided by len(x)."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        h = self.body(x)
        each = f.cross_entropy(self.classes(h), y, reduction="none")
        return each.sum() / len(x) + ((self.number(h)[:, 0] - z) ** 2).sum() / x.shape[0]


class OverNumel(Heads):
    """A sum of absolute values over numel."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        logits = self.classes(self.body(x))
        return f.cross_entropy(logits, y) + 0.01 * logits.abs().sum() / logits.numel()


class RootMeanSquare(Heads):
    """RMSE: the root of a mean."""

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        return torch.sqrt(two + 1e-8)


class DecayByHand(Heads):
    """A data term and the squares of the weights."""

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        return one + two + 1e-3 * sum(p.pow(2).sum() for p in self.parameters())


class LassoOnly(Heads):
    """Weight norms of one layer beside the loss."""

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        return one + 1e-2 * self.classes.weight.abs().mean() + 1e-2 * self.number.weight.norm()


class OrthogonalPenalty(Heads):
    """A weight should be orthogonal."""

    def combined(self, one: Tensor, two: Tensor) -> Tensor:
        w = self.classes.weight
        return one + two + 0.1 * (w @ w.t() - torch.eye(w.shape[0], dtype=w.dtype)).square().sum()


class SparseActivations(Heads):
    """L1 of activations, a mean over rows and units."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        h = self.body(x)
        return f.cross_entropy(self.classes(h), y) + 0.05 * h.abs().mean() + 0.0 * z.sum()


class KlSparsity(Heads):
    """Sparse autoencoder: KL of the mean activation over the batch."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        h = torch.sigmoid(self.body(x))
        rho, mean = 0.2, h.mean(0)
        kl = rho * torch.log(rho / mean) + (1 - rho) * torch.log((1 - rho) / (1 - mean))
        return f.cross_entropy(self.classes(h), y) + kl.sum()


class BalancedExperts(Heads):
    """A dense mixture with Switch's balance loss: a product of two means."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 3)
        self.experts = nn.ModuleList(nn.Linear(16, 5) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        h = self.body(x)
        p = self.router(h).softmax(-1)
        out = torch.stack([expert(h) for expert in self.experts], 1)
        share = f.one_hot(p.argmax(-1), 3).to(p.dtype).mean(0)
        return f.cross_entropy((p[..., None] * out).sum(1), y) + 0.1 * 3 * (share * p.mean(0)).sum()


class DistilledTwice(Heads):
    """Hard labels, and a teacher's soft ones by kl_div batchmean."""

    def forward(self, x: Tensor, y: Tensor, teacher: Tensor) -> Tensor:
        logits = self.classes(self.body(x))
        soft = f.kl_div((logits / 2).log_softmax(-1), (teacher / 2).softmax(-1), reduction="batchmean") * 4
        return 0.5 * f.cross_entropy(logits, y) + 0.5 * soft


class KlOfKinds(Heads):
    """kl_div under each reduction, its `mean` a mean over elements."""

    def forward(self, x: Tensor, teacher: Tensor) -> Tensor:  # type: ignore[override]
        p, q = self.classes(self.body(x)).log_softmax(-1), teacher.softmax(-1)
        return (
            f.kl_div(p, q, reduction="sum") / 8
            + f.kl_div(p, q.log(), reduction="batchmean", log_target=True)
            + f.kl_div(p, q, reduction="none").sum(-1).mean()
        )


class SmoothedWeighted(Heads):
    """Label smoothing and class weights at once: a mean divided by the weights of its rows."""

    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor([1.0, 2.0, 0.5, 1.5, 3.0]))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return f.cross_entropy(self.classes(self.body(x)), y, weight=self.weight, label_smoothing=0.1)


class SmoothedPlain(Heads):
    """Label smoothing alone."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return f.cross_entropy(self.classes(self.body(x)), y, label_smoothing=0.1)


class SoftTargets(Heads):
    """Cross entropy of probabilities."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        return f.cross_entropy(self.classes(self.body(x)), target.softmax(-1))


class ExtraLearned(Heads):
    """An auxiliary head in the middle, with a third of the weight (GoogLeNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Linear(16, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        early = self.body[:2](x)
        late = self.classes(self.body[2:](early))
        return f.cross_entropy(late, y) + 0.3 * f.cross_entropy(self.early(early), y)


_BOTH = "x: normal 8 10; y: int5 8; z: normal 8"
_PLAIN = (
    PlainSum, StackedMeans, StackedMean, CatOfTerms, PythonSum, ProductOfLosses, WorseLoss, LogOfMean,
    DetachedBalance, SumOfMean, MeanAndConstant, BootstrappedViews, DottedTerms, UncertainTasks, UncertainScalars,
    SumOverMean, OverBatchSize, OverNumel, RootMeanSquare,
    DecayByHand, LassoOnly, OrthogonalPenalty, SparseActivations, KlSparsity, BalancedExperts,
)  # fmt: skip
ENTRIES = (
    *(entry(build, _BOTH) for build in _PLAIN),
    entry(DistilledTwice, "x: normal 8 10; y: int5 8; teacher: normal 8 5"),
    entry(KlOfKinds, "x: normal 8 10; teacher: normal 8 5"),
    *(entry(build, "x: normal 8 10; y: int5 8") for build in (SmoothedWeighted, SmoothedPlain, ExtraLearned)),
    entry(SoftTargets, "x: normal 8 10; target: normal 8 5"),
)
