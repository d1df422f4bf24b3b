"""Family 1: rows that meet in the loss."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import Batch, entry


class Encoder(nn.Module):
    """A small encoder with a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16))
        self.project = nn.Linear(16, 8)

    def z(self, x: Tensor) -> Tensor:
        """The embedding."""
        return self.project(torch.relu(self.body(x)))


class ClipPairs(Encoder):
    """CLIP: both sides of a batch of pairs, a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        images = f.normalize(self.z(x), dim=-1)
        texts = f.normalize(self.words(words).mean(1), dim=-1)
        logits = self.scale.exp() * images @ texts.T
        target = torch.arange(len(x), device=x.device)
        return (f.cross_entropy(logits, target) + f.cross_entropy(logits.T, target)) / 2


class InBatchNegatives(Encoder):
    """One-sided: each query against all keys of the batch."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        scores = self.z(query) @ self.z(key).t()
        return f.cross_entropy(scores, torch.arange(scores.size(0)))


class NtXent(Encoder):
    """SimCLR: two views in one batch, the diagonal masked."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        n = a.shape[0]
        z = f.normalize(torch.cat([self.z(a), self.z(b)]), dim=1)
        sim = (z @ z.t() / 0.5).masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
        target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
        return f.cross_entropy(sim, target)


class SigmoidPairs(Encoder):
    """SigLIP: every pair is a yes or a no, divided by the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(-1.0))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        logits = self.z(a) @ self.z(b).T + self.bias
        sign = 2 * torch.eye(a.size(0), dtype=logits.dtype) - 1
        return -f.logsigmoid(sign * logits).sum() / a.size(0)


class HardestTriplet(Encoder):
    """Batch-hard triplets by cdist."""

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        z = self.z(x)
        apart = torch.cdist(z, z)
        same = label[:, None] == label[None, :]
        positive = (apart * same).max(dim=1).values
        negative = (apart + 1e6 * same).min(dim=1).values
        return f.relu(positive - negative.clamp(max=10.0) + 0.3).mean()


class SupervisedContrast(Encoder):
    """SupCon: log probability of the rows of one's own class."""

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        z = f.normalize(self.z(x), dim=-1)
        sim = z @ z.T / 0.3
        same = (label[:, None] == label[None, :]).to(z.dtype)
        log_p = sim - sim.logsumexp(dim=1, keepdim=True)
        return -((same * log_p).sum(1) / same.sum(1)).mean()


class VicReg(Encoder):
    """Invariance, variance and covariance of a batch."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        za, zb = self.z(a), self.z(b)
        loss = 25 * f.mse_loss(za, zb)
        for z in (za, zb):
            centred = z - z.mean(dim=0)
            std = torch.sqrt(centred.var(dim=0) + 1e-4)
            cov = centred.T @ centred / (z.shape[0] - 1)
            off = cov - torch.diag(torch.diagonal(cov))
            loss = loss + 25 * torch.relu(1 - std).mean() + off.pow(2).sum() / z.shape[1]
        return loss


class BarlowTwins(Encoder):
    """The cross-correlation of two views should be the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8, affine=False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        c = self.norm(self.z(a)).T @ self.norm(self.z(b)) / a.shape[0]
        on = (torch.diagonal(c) - 1).pow(2).sum()
        return on + 0.005 * (c.pow(2).sum() - torch.diagonal(c).pow(2).sum())


class PairwiseRanking(Encoder):
    """RankNet over all pairs of rows."""

    def forward(self, x: Tensor, relevance: Tensor) -> Tensor:
        s = self.z(x).sum(-1)
        apart = s[:, None] - s[None, :]
        order = torch.sign(relevance[:, None] - relevance[None, :])
        return f.softplus(-order * apart).mean()


class ListNet(Encoder):
    """A list is the batch: cross entropy of two softmaxes over rows."""

    def forward(self, x: Tensor, relevance: Tensor) -> Tensor:
        return -(relevance.softmax(0) * self.z(x).sum(-1).log_softmax(0)).sum()


class LogSumOfRows(Encoder):
    """Donsker-Varadhan: a mean less a logsumexp over rows."""

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        joint, apart = self.z(x).sum(-1), self.z(other).sum(-1)
        return -(joint.mean() - (torch.logsumexp(apart, dim=0) - torch.tensor(float(len(apart))).log()))


class BatchSoftmax(Encoder):
    """Rows weighted by a softmax along the batch."""

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        z = self.z(x)
        return (z[:, 0].softmax(0) * f.cross_entropy(z, label, reduction="none")).sum()


class MmdOfSides(Encoder):
    """Maximum mean discrepancy between two domains."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        za, zb = self.z(a), self.z(b)

        def kernel(p: Tensor, q: Tensor) -> Tensor:
            return torch.exp(-torch.cdist(p, q).pow(2) / 8).mean()

        return kernel(za, za) + kernel(zb, zb) - 2 * kernel(za, zb)


class CovarianceMatch(Encoder):
    """Deep CORAL: torch.cov of two domains, with a loss of labels beside it."""

    def forward(self, a: Tensor, b: Tensor, label: Tensor) -> Tensor:
        za, zb = self.z(a), self.z(b)
        return f.cross_entropy(za, label) + (torch.cov(za.T) - torch.cov(zb.T)).pow(2).mean()


class SharpeRatio(Encoder):
    """A portfolio: mean over standard deviation of the rows' returns."""

    def forward(self, x: Tensor, returns: Tensor) -> Tensor:
        earned = (self.z(x).softmax(-1) * returns).sum(-1)
        return -earned.mean() / (earned.std() + 1e-6)


class PearsonLoss(Encoder):
    """One less the correlation over the batch."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        p = self.z(x).sum(-1)
        return 1 - f.cosine_similarity(p - p.mean(), y - y.mean(), dim=0)


class CoxHazard(Encoder):
    """Cox's partial likelihood: sorted by time, a logcumsumexp over rows."""

    def forward(self, x: Tensor, time: Tensor, event: Tensor) -> Tensor:
        risk = self.z(x).sum(-1)[time.argsort(descending=True)]
        seen = event[time.argsort(descending=True)].to(risk.dtype)
        return -((risk - torch.logcumsumexp(risk, 0)) * seen).sum() / seen.sum()


class HardExamples(Encoder):
    """OHEM: the worst half of the rows."""

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        each = f.cross_entropy(self.z(x), label, reduction="none")
        return each.topk(each.numel() // 2).values.mean()


class MedianLoss(Encoder):
    """The median row."""

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        return f.cross_entropy(self.z(x), label, reduction="none").median()


class DiversityBonus(Encoder):
    """Entropy of the mean prediction, as in clustering by deep nets."""

    def forward(self, x: Tensor) -> Tensor:
        p = self.z(x).softmax(-1)
        mean = p.mean(0)
        return -(p * p.clamp(min=1e-9).log()).sum(-1).mean() + (mean * mean.log()).sum()


class ForeignPairs(Encoder):
    """Pairs met in a loss function that forward knows nothing of."""

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.z(query), self.z(key)


def pairs_loss(output: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
    """InfoNCE."""
    query, key = output
    return f.cross_entropy(query @ key.T, torch.arange(len(query)))


_VIEWS = "a: normal 8 12; b: normal 8 12"
_LABEL = "x: normal 8 12; label: int4 8"
ENTRIES = (
    entry(ClipPairs, "x: normal 8 12; words: int20 8 3"),
    entry(InBatchNegatives, "query: normal 8 12; key: normal 8 12"),
    *(entry(build, _VIEWS) for build in (NtXent, SigmoidPairs, VicReg, BarlowTwins, MmdOfSides)),
    *(entry(build, _LABEL) for build in (HardestTriplet, SupervisedContrast, BatchSoftmax, HardExamples, MedianLoss)),
    entry(PairwiseRanking, "x: normal 8 12; relevance: normal 8"),
    entry(ListNet, "x: normal 8 12; relevance: normal 8"),
    entry(LogSumOfRows, "x: normal 8 12; other: normal 8 12"),
    entry(CovarianceMatch, f"{_VIEWS}; label: int8 8"),
    entry(SharpeRatio, "x: normal 8 12; returns: normal 8 8"),
    entry(PearsonLoss, "x: normal 8 12; y: normal 8"),
    entry(CoxHazard, "x: normal 8 12; time: unit 8; event: bool 8"),
    entry(DiversityBonus, "x: normal 8 12"),
    entry(ForeignPairs, "query: normal 8 12; key: normal 8 12", pairs_loss),
)
