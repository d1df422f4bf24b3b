"""Family 8: forms of input and output."""
# ruff: noqa: D102

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as f
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils import ModelOutput

from examples.parity.zoo.entry import Batch, entry


class Body(nn.Module):
    """What each model here computes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


class LossOnly(Body):
    """Only a loss."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.net(x), y)


class LossInDict(Body):
    """A dict with a loss, logits and a metric."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        out = self.net(x)
        accuracy = (out.argmax(-1) == y).to(out.dtype).mean()
        return {"logits": out, "loss": f.cross_entropy(out, y), "accuracy": accuracy}


class OrderedOutput(Body):
    """An OrderedDict, the loss last."""

    def forward(self, x: Tensor, y: Tensor) -> OrderedDict[str, Tensor]:
        out = self.net(x)
        return OrderedDict(logits=out, loss=f.cross_entropy(out, y))


class LossFirst(Body):
    """(loss, logits)."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.net(x)
        return f.cross_entropy(out, y), out


class NamedPair(NamedTuple):
    """A NamedTuple with a loss."""

    loss: Tensor
    logits: Tensor


class NamedOutput(Body):
    """A NamedTuple."""

    def forward(self, x: Tensor, y: Tensor) -> NamedPair:
        out = self.net(x)
        return NamedPair(f.cross_entropy(out, y), out)


@dataclass
class PlainOutput:
    """A dataclass with a loss."""

    logits: Tensor
    loss: Tensor


class DataclassOutput(Body):
    """A dataclass."""

    def forward(self, x: Tensor, y: Tensor) -> PlainOutput:
        out = self.net(x)
        return PlainOutput(logits=out, loss=f.cross_entropy(out, y))


@dataclass
class OwnModelOutput(ModelOutput):  # type: ignore[misc]  # transformers is taken as untyped
    """A ModelOutput of one's own."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden: Tensor | None = None


class OwnOutput(Body):
    """A ModelOutput of one's own."""

    def forward(self, x: Tensor, y: Tensor) -> OwnModelOutput:
        out = self.net(x)
        return OwnModelOutput(loss=f.cross_entropy(out, y), logits=out)


class HuggingOutput(Body):
    """transformers' own output, labels optional."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> SequenceClassifierOutput:
        out = self.net(x)
        loss = f.cross_entropy(out, labels) if labels is not None else None
        return SequenceClassifierOutput(loss=loss, logits=out)


class DetectionLosses(Body):
    """A dict of several losses, summed by the loss function (torchvision's detectors)."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        out = self.net(x)
        return {"loss_class": f.cross_entropy(out, y), "loss_box": out[:, 0].square().mean()}


def summed(output: dict[str, Tensor], batch: Batch) -> Tensor:
    """The sum of all losses."""
    return sum(output.values(), torch.zeros(()))


class LogitsOnly(Body):
    """Labels that forward does not take."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def cross_entropy(output: Tensor, batch: Batch) -> Tensor:
    """Of the batch's labels."""
    return f.cross_entropy(output, batch["target"])


class LogitsInDict(Body):
    """A dict of two heads, both in the loss."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out = self.net(x)
        return {"logits": out, "value": out.mean(-1)}


def of_dict(output: dict[str, Tensor], batch: Batch) -> Tensor:
    """Both heads."""
    return f.cross_entropy(output["logits"], batch["target"]) + 0.1 * f.mse_loss(output["value"], batch["value"])


class ListOfScales(Body):
    """A list of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        out = self.net(x)
        return [head(out) for head in self.heads]


def of_list(output: list[Tensor], batch: Batch) -> Tensor:
    """The mean over the outputs."""
    return torch.stack([f.cross_entropy(one, batch["target"]) for one in output]).mean()


class Nested(Body):
    """A tuple of a dict and a tuple."""

    def forward(self, x: Tensor) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
        out = self.net(x)
        return {"a": out}, (out.tanh(), out.sigmoid())


def of_nested(output: Any, batch: Batch) -> Tensor:
    """All of it."""
    return f.cross_entropy(output[0]["a"], batch["target"]) + output[1][0].square().mean() + output[1][1].mean()


class KeywordOnly(Body):
    """Keyword-only inputs in another order, defaults of None and of numbers."""

    def forward(
        self, *, y: Tensor, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, scale: float = 2.0
    ) -> Tensor:
        each = f.cross_entropy(scale * self.net(x), y, reduction="none")
        return (each * weight).mean() if weight is not None else each.mean()


class AnyKeywords(Body):
    """**batch."""

    def forward(self, **batch: Tensor) -> Tensor:
        return f.cross_entropy(self.net(batch["x"]), batch["y"])


class ThreeTypes(Body):
    """Integers, booleans and floats, each of one number a row."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 8)

    def forward(self, x: Tensor, kind: Tensor, flag: Tensor, weight: Tensor, y: Tensor) -> Tensor:
        h = x * flag[:, None] + self.table(kind)
        return (f.cross_entropy(self.net(h), y, reduction="none") * weight).mean()


class SeveralLengths(Body):
    """Inputs of several lengths and ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.sound = nn.Conv2d(1, 4, 3), nn.Conv1d(2, 4, 3)

    def forward(self, image: Tensor, sound: Tensor, y: Tensor) -> Tensor:
        h = torch.cat((self.image(image).amax((2, 3)), self.sound(sound).amax(2)), 1)
        return f.cross_entropy(self.net(h), y)


class TimeFirstInput(nn.Module):
    """Everything time first: (time, rows, features), rows are not dim 0."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(5, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out, _ = self.gru(x)
        return f.cross_entropy(self.head(out).flatten(0, 1), y.flatten())


class SharedInput(Body):
    """An input without rows: a table that all rows share."""

    def forward(self, x: Tensor, scale: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.net(x * scale), y)


class ColumnLabels(Body):
    """Labels of shape (rows, 1), squeezed; floats that are cast to integers."""

    def forward(self, x: Tensor, y: Tensor, kind: Tensor) -> Tensor:
        return f.cross_entropy(self.net(x) + kind.long()[:, None], y.squeeze(1))


class BroadcastMistake(Body):
    """(rows,) less (rows, 1): a mistake that trains on all pairs of rows."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.mse_loss(self.net(x)[:, :1] - y, torch.zeros(1, dtype=x.dtype).expand(len(y), len(y)))


class OptionalMask(Body):
    """An optional mask that is not given."""

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None, Tensor]:
        out = self.net(x)
        if mask is not None:
            out = out * mask
        return f.cross_entropy(out, y), None, out


class VectorLoss(Body):
    """A loss of one element, not of none."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.net(x), y).reshape(1)


class HalfReturn(Body):
    """An output that is partly integers and python numbers."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        out = self.net(x)
        return {"loss": f.cross_entropy(out, y), "prediction": out.argmax(-1), "rows": len(x), "name": "half"}


_XY, _TARGET = "x: normal 8 8; y: int4 8", "x: normal 8 8; target: int4 8"
_PLAIN = (
    LossOnly, LossInDict, OrderedOutput, LossFirst, NamedOutput, DataclassOutput, OwnOutput, AnyKeywords, OptionalMask,
    VectorLoss, HalfReturn,
)  # fmt: skip
ENTRIES = (
    *(entry(build, _XY) for build in _PLAIN),
    entry(HuggingOutput, "x: normal 8 8; labels: int4 8"),
    entry(DetectionLosses, _XY, summed),
    entry(LogitsOnly, _TARGET, cross_entropy),
    entry(LogitsInDict, f"{_TARGET}; value: normal 8", of_dict),
    entry(ListOfScales, _TARGET, of_list),
    entry(Nested, _TARGET, of_nested),
    entry(KeywordOnly, "x: normal 8 8; y: int4 8; weight: unit 8"),
    entry(ThreeTypes, "x: normal 8 8; kind: int5 8; flag: bool 8; weight: unit 8; y: int4 8"),
    entry(SeveralLengths, "image: normal 8 1 5 5; sound: normal 8 2 7; y: int4 8"),
    entry(TimeFirstInput, "x: normal 6 8 5; y: int4 6 8"),
    entry(SharedInput, "x: normal 8 8; scale: normal 1 8; y: int4 8"),
    entry(ColumnLabels, "x: normal 8 8; y: int4 8 1; kind: int3 8"),
    entry(BroadcastMistake, "x: normal 8 8; y: normal 8"),
)
