"""Models, factories and losses with mistakes in them, and some that no machine holds."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel


class Branches(nn.Module):
    """Takes a path that depends on its values, which no graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        if y.sum() > 0:  # the line the error must name
            return y.mean()
        return y.sum()


def _require(true: bool, why: str) -> None:
    if not true:
        raise ValueError(why)


class Checks(nn.Module):
    """Checks that raise for wrong labels; `how` names one on which more depends."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.own, self.how = nn.Linear(4, 4), how

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if labels is not None and labels.max() >= 4:
            raise ValueError("a label is no class")
        if bool(torch.isnan(x).any()):
            raise ValueError("not a number")
        if not (labels >= 0).all():
            raise ValueError("a label is negative")
        assert not torch.isinf(x).any(), "not finite"
        if self.how == "branch" and x.max() > 0:
            x = x * 2
        if self.how == "caught":
            x = x * self._scale(x)
        if self.how == "ends":
            x = x * len(list(self._numbers(x)))
        if self.how == "computes" and x.max() > 100:
            x = x * 2
            raise ValueError(x)
        if self.how == "returns" and self._early(x):
            return x.sum() * self.own.weight.sum()
        if self.how == "told":
            _require(x.shape[1] == 4, f"{x.max()} of {labels}")
            torch._check_tensor_all(x.abs() < 1e6)  # type: ignore[no-untyped-call]  # torch does not type it
        if self.how == "other":
            if x.max() > 100:
                raise ValueError("large")
            else:
                x = x * 2
        return nn.functional.cross_entropy(self.own(x), labels)

    def _numbers(self, x: torch.Tensor) -> Iterator[int]:
        for number in range(5):
            if x.sum() > 1e6:
                raise IndexError
            yield number

    def _early(self, x: torch.Tensor) -> bool:
        if x.max() > 0:
            return True
        raise ValueError

    def _scale(self, x: torch.Tensor) -> float:
        try:
            if x.max() > 0:
                raise ValueError
        except ValueError:
            return 2.0
        return 1.0


def branches() -> Branches:
    return Branches()


def tiny() -> GPT2LMHeadModel:
    """A GPT-2 of two layers over bytes."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=32, n_embd=32, n_layer=2, n_head=2))


def wider() -> GPT2LMHeadModel:
    """Another one."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=2))


def plain() -> nn.Module:
    """Implies no batch."""
    return nn.Linear(3, 3)


def not_a_model() -> str:
    return "weights"


def raises() -> nn.Module:
    raise ValueError("no weather data")  # the factory's own line


def ends() -> nn.Module:
    raise SystemExit(0)


def sized(width: int) -> nn.Module:
    return nn.Linear(width, 1)


class Bounds(nn.Module):
    """Bounds what is not finite in training; `how` names one on which more depends."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.own, self.how = nn.Linear(4, 4), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.own(x)
        if self.how == "small":
            h = self._small(h)
        elif self.how == "counts":
            h = self._counted(h)
        elif self.training:
            h = self._bounded(h)
        return (h + x).pow(2).mean()  # type: ignore[no-any-return]

    def _bounded(self, h: torch.Tensor) -> torch.Tensor:
        if not torch.isfinite(h).all():
            clamp_value = torch.finfo(h.dtype).max - 1000
            h = torch.clamp(h, min=-clamp_value, max=clamp_value)
        return h

    def _small(self, h: torch.Tensor) -> torch.Tensor:
        if not torch.isfinite(h).all():
            clamp_value = 1000
            h = torch.clamp(h, min=-clamp_value, max=clamp_value)
        return h

    def _counted(self, h: torch.Tensor) -> torch.Tensor:
        if not torch.isfinite(h).all():
            clamp_value = torch.finfo(h.dtype).max - 1000
            h = torch.clamp(h, min=-clamp_value, max=clamp_value)
            h = h * 0
        return h


class Dense(nn.Module):
    """Takes x, gives no loss by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(x)  # the layer takes 64
        return scores


def dense() -> nn.Module:
    return Dense()


class Empty(nn.Module):
    """Nothing to train."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean()


def empty() -> nn.Module:
    return Empty()


class Raising(Dense):
    """A forward with a mistake of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the forward blew up")


def raising() -> nn.Module:
    return Raising()


def squares(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return (output**2).mean()


def classes(output: object, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    assert isinstance(output, torch.Tensor)
    return nn.functional.cross_entropy(output, batch["y"])


def many(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return output


def no_tensor(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> float:
    return 1.0


def looks_up(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return batch["answers"].mean()


class Labelled(Dense):
    """Takes classes, and gives the loss itself."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return nn.functional.cross_entropy(self.layer(x), y)


def labelled() -> nn.Module:
    return Labelled()
