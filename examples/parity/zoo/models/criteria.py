"""Family 2: the losses of torch.nn.functional and of papers, of rows, tokens and pixels."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import Batch, entry


class Tagger(nn.Module):
    """Tokens to classes."""

    def __init__(self, classes: int = 7) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, classes)

    def logits(self, tokens: Tensor) -> Tensor:
        """(rows, length, classes)."""
        return self.head(torch.relu(self.mix(self.embed(tokens))))


class MaskedTokens(Tagger):
    """A loss of tokens divided by how many the mask keeps."""

    def forward(self, tokens: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        logits = self.logits(tokens)
        each = f.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
        return (each * mask).sum() / mask.sum()


class RowMaskMean(Tagger):
    """A mean of each row over its own mask, then of the rows."""

    def forward(self, tokens: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        each = f.cross_entropy(self.logits(tokens).transpose(1, 2), labels, reduction="none")
        return ((each * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()


class BooleanTokens(Tagger):
    """logits[mask]: as many rows as the mask says."""

    def forward(self, tokens: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return f.cross_entropy(self.logits(tokens)[mask], labels[mask])


class IgnoredTwice(Tagger):
    """ignore_index in two terms of different labels."""

    def forward(self, tokens: Tensor, labels: Tensor, others: Tensor) -> Tensor:
        logits = self.logits(tokens)
        one = f.cross_entropy(logits.transpose(1, 2), labels, ignore_index=0)
        two = f.cross_entropy(logits.transpose(1, 2), others, ignore_index=3)
        return one + 0.5 * two


class IgnoredOnce(Tagger):
    """Padding ignored, one term."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return f.cross_entropy(self.logits(tokens).reshape(-1, 7), labels.reshape(-1), ignore_index=0)


class ShiftedLanguage(Tagger):
    """A language model by hand: logits[:, :-1] and labels[:, 1:], the class `nll_loss`."""

    def __init__(self) -> None:
        super().__init__(30)

    def forward(self, tokens: Tensor) -> Tensor:
        p = self.logits(tokens)[:, :-1].log_softmax(-1)
        return f.nll_loss(p.flatten(0, 1), tokens[:, 1:].flatten())


class GatheredNll(Tagger):
    """-log p by gather, a mean."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        p = self.logits(tokens).log_softmax(-1)
        return -p.gather(-1, labels[..., None]).squeeze(-1).sum(1).mean()


class CtcSpeech(nn.Module):
    """CTC with lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(6, 16, 3, padding=1), nn.ReLU(), nn.Conv1d(16, 5, 1))

    def forward(self, audio: Tensor, text: Tensor, audio_lengths: Tensor, text_lengths: Tensor) -> Tensor:
        p = self.net(audio).permute(2, 0, 1).log_softmax(-1)
        return f.ctc_loss(p, text, audio_lengths, text_lengths, zero_infinity=True)


class CtcSummed(CtcSpeech):
    """CTC, summed over rows and divided by them."""

    def forward(self, audio: Tensor, text: Tensor, audio_lengths: Tensor, text_lengths: Tensor) -> Tensor:
        p = self.net(audio).permute(2, 0, 1).log_softmax(-1)
        return f.ctc_loss(p, text, audio_lengths, text_lengths, reduction="sum") / audio.shape[0]


class Pixels(nn.Module):
    """Images to one logit a pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))

    def logits(self, image: Tensor) -> Tensor:
        """(rows, height, width)."""
        return self.net(image).squeeze(1)


class DiceOfBatch(Pixels):
    """Dice over all pixels of the batch."""

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        p, m = self.logits(image).sigmoid(), mask.double().to(image.dtype)
        return 1 - (2 * (p * m).sum() + 1) / (p.sum() + m.sum() + 1)


class DiceOfRows(Pixels):
    """Dice of each image, averaged, plus bce."""

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        logits, m = self.logits(image), mask.to(image.dtype)
        p = logits.sigmoid()
        dice = 1 - (2 * (p * m).sum((1, 2)) + 1) / (p.sum((1, 2)) + m.sum((1, 2)) + 1)
        return dice.mean() + f.binary_cross_entropy_with_logits(logits, m)


class SoftIou(Pixels):
    """IoU, images apart by flatten."""

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        p, m = self.logits(image).sigmoid().flatten(1), mask.to(image.dtype).flatten(1)
        both = (p * m).sum(1)
        return (1 - (both + 1) / (p.sum(1) + m.sum(1) - both + 1)).mean()


class FocalPixels(Pixels):
    """Focal loss by hand, divided by the positives."""

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        m, logits = mask.to(image.dtype), self.logits(image)
        bce = f.binary_cross_entropy_with_logits(logits, m, reduction="none")
        return (0.25 * (1 - torch.exp(-bce)) ** 2 * bce).sum() / m.sum().clamp(min=1.0)


class TotalVariation(Pixels):
    """An error and the differences of neighbours."""

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        p = self.logits(image)
        smooth = (p[:, 1:] - p[:, :-1]).abs().mean() + (p[..., 1:] - p[..., :-1]).abs().mean()
        return f.l1_loss(p, mask.to(p.dtype)) + 0.1 * smooth


class Vectors(nn.Module):
    """Rows to five numbers; the loss is a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 16), nn.SiLU(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class TwoVectors(Vectors):
    """Two rows at once through one net."""

    def forward(self, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.net(x), self.net(other)


class TwoOutputs(nn.Module):
    """A mean and a variance."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(10, 16)
        self.mean = nn.Linear(16, 1)
        self.variance = nn.Linear(16, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        return f.gaussian_nll_loss(self.mean(h).squeeze(-1), y, f.softplus(self.variance(h)).squeeze(-1))


def hinge(output: Tensor, batch: Batch) -> Tensor:
    """Crammer-Singer by torch."""
    return f.multi_margin_loss(output, batch["y"])


def hinge_by_hand(output: Tensor, batch: Batch) -> Tensor:
    """max(0, 1 - t p), squared, summed over classes."""
    sign = 2 * f.one_hot(batch["y"], 5).to(output.dtype) - 1
    return (1 - sign * output).clamp(min=0).pow(2).sum(-1).mean()


def poisson(output: Tensor, batch: Batch) -> Tensor:
    """Counts, with Stirling's term."""
    return f.poisson_nll_loss(output, batch["counts"].to(output.dtype), full=True)


def multi_label(output: Tensor, batch: Batch) -> Tensor:
    """Several labels a row, with weights of the positives."""
    return f.binary_cross_entropy_with_logits(
        output, batch["labels"].to(output.dtype), pos_weight=torch.arange(1, 6).to(output.dtype)
    )


def multi_soft(output: Tensor, batch: Batch) -> Tensor:
    """multilabel_soft_margin_loss."""
    return f.multilabel_soft_margin_loss(output, batch["labels"].to(output.dtype))


def huber_weighted(output: Tensor, batch: Batch) -> Tensor:
    """A weight for each row, divided by the weights' sum."""
    each = f.huber_loss(output, batch["target"], reduction="none", delta=0.5).mean(-1)
    return (each * batch["w"]).sum() / batch["w"].sum()


def row_weighted(output: Tensor, batch: Batch) -> Tensor:
    """A weight for each row, divided by the rows."""
    each = f.smooth_l1_loss(output, batch["target"], reduction="none").mean(-1)
    return (each * batch["w"]).mean()


def log_cosh(output: Tensor, batch: Batch) -> Tensor:
    """log cosh, and a quantile loss of the first column."""
    d = batch["target"] - output
    return torch.log(torch.cosh(d)).mean() + torch.max(0.9 * d[:, 0], -0.1 * d[:, 0]).mean()


def relative(output: Tensor, batch: Batch) -> Tensor:
    """Relative error: norms over the whole batch, one over the other."""
    return torch.norm(output - batch["target"]) / torch.norm(batch["target"])


def explained(output: Tensor, batch: Batch) -> Tensor:
    """One less R squared."""
    target = batch["target"]
    return ((output - target) ** 2).sum() / ((target - target.mean(0)) ** 2).sum()


def cosine(output: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
    """cosine_embedding_loss with both signs."""
    return f.cosine_embedding_loss(*output, batch["side"], margin=0.2)


def ranked(output: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
    """margin_ranking_loss of first columns."""
    return f.margin_ranking_loss(output[0][:, 0], output[1][:, 0], batch["side"], margin=0.1)


def triplet(output: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
    """triplet_margin_loss, the anchor given."""
    return f.triplet_margin_loss(batch["target"], *output, swap=True)


_TOKENS = "tokens: int30 8 6; labels: int7 8 6"
_IMAGES = "image: normal 8 3 6 6; mask: bool 8 6 6"
_SPEECH = "audio: normal 8 6 12; text: int1-4 8 3; audio_lengths: int9-12 8; text_lengths: int1-3 8"
_X = "x: normal 8 10"


class HingeNet(Vectors):
    """Vectors under `hinge`."""


class HingeByHand(Vectors):
    """Vectors under `hinge_by_hand`."""


class PoissonNet(Vectors):
    """Vectors under `poisson`."""


class MultiLabel(Vectors):
    """Vectors under `multi_label`."""


class MultiSoft(Vectors):
    """Vectors under `multi_soft`."""


class HuberWeighted(Vectors):
    """Vectors under `huber_weighted`."""


class RowWeighted(Vectors):
    """Vectors under `row_weighted`."""


class LogCosh(Vectors):
    """Vectors under `log_cosh`."""


class RelativeError(Vectors):
    """Vectors under `relative`."""


class Explained(Vectors):
    """Vectors under `explained`."""


class CosinePairs(TwoVectors):
    """Two vectors under `cosine`."""


class RankedPairs(TwoVectors):
    """Two vectors under `ranked`."""


class TripletPairs(TwoVectors):
    """Two vectors under `triplet`."""


ENTRIES = (
    *(entry(build, f"{_TOKENS}; mask: bool 8 6") for build in (MaskedTokens, RowMaskMean, BooleanTokens)),
    entry(IgnoredTwice, f"{_TOKENS}; others: int7 8 6"),
    *(entry(build, _TOKENS) for build in (IgnoredOnce, GatheredNll)),
    entry(ShiftedLanguage, "tokens: int30 8 6"),
    *(entry(build, _SPEECH) for build in (CtcSpeech, CtcSummed)),
    *(entry(build, _IMAGES) for build in (DiceOfBatch, DiceOfRows, SoftIou, FocalPixels, TotalVariation)),
    entry(TwoOutputs, "x: normal 8 10; y: normal 8"),
    entry(HingeNet, f"{_X}; y: int5 8", hinge),
    entry(HingeByHand, f"{_X}; y: int5 8", hinge_by_hand),
    entry(PoissonNet, f"{_X}; counts: int9 8 5", poisson),
    entry(MultiLabel, f"{_X}; labels: bool 8 5", multi_label),
    entry(MultiSoft, f"{_X}; labels: bool 8 5", multi_soft),
    entry(HuberWeighted, f"{_X}; target: normal 8 5; w: unit 8", huber_weighted),
    entry(RowWeighted, f"{_X}; target: normal 8 5; w: unit 8", row_weighted),
    entry(LogCosh, f"{_X}; target: normal 8 5", log_cosh),
    entry(RelativeError, f"{_X}; target: normal 8 5", relative),
    entry(Explained, f"{_X}; target: normal 8 5", explained),
    entry(CosinePairs, f"{_X}; other: normal 8 10; side: sign 8", cosine),
    entry(RankedPairs, f"{_X}; other: normal 8 10; side: sign 8", ranked),
    entry(TripletPairs, f"{_X}; other: normal 8 10; target: normal 8 5", triplet),
)
