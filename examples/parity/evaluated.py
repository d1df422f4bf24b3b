"""Models with a part in the middle that computes otherwise in evaluation than in training."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, OUT = 16, 4
BATCH = (("x", (8, WIDTH)), ("y", (8, OUT)))

Middle = Callable[[nn.Module, Tensor], Tensor]


class Part(nn.Module):
    """`compute(self, values)`, of what its `inner` modules make."""

    def __init__(self, compute: Middle, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.compute, self.inner = compute, inner or nn.Identity()

    def forward(self, h: Tensor) -> Tensor:
        """What the function makes of it."""
        return self.compute(self, h)


class Between(nn.Module):
    """Two layers, between which something is computed."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.one, self.middle, self.two = nn.Linear(WIDTH, WIDTH), middle, nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss."""
        return functional.mse_loss(self.two(self.middle(self.one(x)).flatten(1)), y)


def _shaped(inner: nn.Module, *sizes: int) -> nn.Module:
    return Between(Part(lambda part, h: part.inner(h.view(-1, *sizes)), inner))  # type: ignore[operator]


def _recurrent(inner: nn.Module) -> nn.Module:
    return Between(Part(lambda part, h: part.inner(h.view(-1, 4, 4))[0], inner))  # type: ignore[operator]


def instance_norm() -> nn.Module:
    """A model with instance norm."""
    return _shaped(nn.InstanceNorm2d(4, track_running_stats=True), 4, 2, 2)


def affine_instance_norm() -> nn.Module:
    """A model with affine instance norm."""
    return _shaped(nn.InstanceNorm1d(4, affine=True, track_running_stats=True), 4, 4)


def untracked_instance_norm() -> nn.Module:
    """A model with untracked instance norm."""
    return _shaped(nn.InstanceNorm2d(4, affine=True), 4, 2, 2)


def cumulative_batch_norm() -> nn.Module:
    """It reads the number of batches, so that it is opaque."""
    return _shaped(nn.BatchNorm2d(4, momentum=None), 4, 2, 2)


def feature_dropout() -> nn.Module:
    """A model with feature dropout."""
    return _shaped(nn.Dropout2d(0.5), 4, 2, 2)


def alpha_dropout() -> nn.Module:
    """A model with alpha dropout."""
    return Between(nn.AlphaDropout(0.5))


def feature_alpha_dropout() -> nn.Module:
    """A model with feature alpha dropout."""
    return _shaped(nn.FeatureAlphaDropout(0.5), 4, 2, 2)


def rrelu() -> nn.Module:
    """Slopes that are drawn in training, in place too."""
    return Between(nn.Sequential(nn.RReLU(), nn.Linear(WIDTH, WIDTH), nn.RReLU(inplace=True)))


def lstm() -> nn.Module:
    """An LSTM with dropout between its layers."""
    return _recurrent(nn.LSTM(4, 4, 2, dropout=0.5, batch_first=True))


def gru() -> nn.Module:
    """A GRU with dropout between its layers."""
    return _recurrent(nn.GRU(4, 4, 2, dropout=0.5, batch_first=True))


def rnn() -> nn.Module:
    """An RNN with dropout between its layers."""
    return _recurrent(nn.RNN(4, 4, 2, dropout=0.5, batch_first=True))


def noisy() -> nn.Module:
    """More in training than in evaluation, by the model's own code."""
    return Between(Part(lambda part, h: h * 1.1 if part.training else h))


def graded() -> nn.Module:
    """More where gradients are on, which an evaluation turns off."""
    return Between(Part(lambda part, h: h * 1.1 if torch.is_grad_enabled() else h))


def kept_dropping() -> nn.Module:
    """Dropout that is on in both modes, as its author wants it."""
    return Between(Part(lambda part, h: functional.dropout(h, 0.5)))


def kept_attending() -> nn.Module:
    """Attention that drops scores in both modes, as where the share is handed over without a look at the mode."""
    return _shaped(Part(lambda part, h: functional.scaled_dot_product_attention(h, h, h, dropout_p=0.5)), 2, 4, 2)


class BatchStatistics(nn.BatchNorm1d):
    """Batch norm by the statistics of the batch in both modes; nobody reads the running ones."""

    def forward(self, input: Tensor) -> Tensor:
        """The rows, normalised."""
        return functional.batch_norm(input, self.running_mean, self.running_var, training=True)


def kept_normalising() -> nn.Module:
    """A model that normalises in evaluation as in training."""
    return Between(BatchStatistics(WIDTH))


def other_constants() -> nn.Module:
    """Multiplied by other numbers in evaluation."""
    factors = {True: [1.0, 1.0, 1.0, 1.0], False: [1.0, 5.0, 1.0, 9.0]}
    return Between(Part(lambda part, h: h * torch.tensor(factors[part.training], dtype=h.dtype).repeat(4)))


class Encoding(nn.Module):
    """An encoder of sequences whose last places are padding, which it leaves out where nothing trains."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, h: Tensor) -> Tensor:
        """Rows of four places, the last one of them padding."""
        padding = (torch.arange(4, device=h.device) > 2).expand(h.shape[0], 4)
        found: Tensor = self.encoder(h.view(-1, 4, 4), src_key_padding_mask=padding)
        return found


class Scaling(nn.Module):
    """It scales by a number that the mode sets."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def train(self, mode: bool = True) -> Scaling:
        """Another factor in evaluation."""
        self.factor = 1.0 if mode else 2.0
        return super().train(mode)

    def forward(self, h: Tensor) -> Tensor:
        """Times the factor."""
        return h * self.factor


def padded() -> nn.Module:
    """A model with an encoder that leaves padding out in evaluation."""
    return Between(Encoding())


def scaled() -> nn.Module:
    """A model that its mode changes."""
    return Between(Scaling())


class Frozen(nn.Module):
    """The encoder in evaluation throughout, without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Encoding()

    def train(self, mode: bool = True) -> Frozen:
        """The encoder never trains."""
        super().train(mode)
        self.inner.eval()
        return self

    def forward(self, h: Tensor) -> Tensor:
        """Beside what came."""
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls what it does with padding a prototype
            found: Tensor = self.inner(h.detach())
        return h + found.flatten(1)


def frozen() -> nn.Module:
    """A model whose frozen encoder leaves padding out in training."""
    made = Between(Frozen())
    made.train()
    return made


def unevaluable() -> nn.Module:
    """A model that does not get through its forward in evaluation."""
    return Between(Part(lambda part, h: h if part.training else h @ h))


class Tracked(nn.Module):
    """As an EMA codebook: a buffer that is read, written and read, and a term of the loss, in training alone."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(WIDTH, OUT)
        self.register_buffer("mean", torch.zeros(OUT))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss, in training."""
        h = self.part(x)
        away = h - self.mean
        if self.training:
            self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
            near = functional.mse_loss(h, self.mean.expand_as(h))
        return functional.mse_loss(away, y) + near


def tracked() -> nn.Module:
    """A model that raises in evaluation, where it would write no buffer."""
    return Tracked()


def softened() -> nn.Module:
    """The same in both modes, but for dropout."""
    return Between(Part(lambda part, h: functional.dropout(h, 0.5, part.training)))
