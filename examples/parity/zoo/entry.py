"""Entry: one model of the zoo, and the batches it is fed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from placer.plans.settings import RunSettings

Batch = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A model with all that a run of it needs.

    build: a class or a function at the top of a module, without arguments. batch: its inputs, `x: normal 8 16; y: int10
    8` (see `_tensor`). loss: called as `loss(output, batch)` where the model returns none. casts: the model computes
    in float32 itself, whatever it is given. axes: what a replica of two devices is cut along, besides `tensor`.
    """

    build: Callable[[], nn.Module]
    batch: str
    loss: Callable[..., Tensor] | None = None
    settings: RunSettings = RunSettings()  # noqa: RUF009 - frozen
    casts: bool = False
    axes: tuple[str, ...] = ()
    family: int = 0

    @property
    def name(self) -> str:
        """What the model is called."""
        return self.build.__name__

    @property
    def reference(self) -> str:
        """`package.module:name`, from which ranks build it again."""
        return f"{self.build.__module__}:{self.name}"

    @property
    def rows(self) -> int:
        """Rows of a batch."""
        return next(iter(self.made(0).values())).shape[0]

    def made(self, seed: int) -> Batch:
        """The batch of a seed, its floating tensors in float64."""
        generator = torch.Generator().manual_seed(seed)
        parts = (part.split(":", 1) for part in self.batch.split(";"))
        return {name.strip(): _tensor(kind.split(), generator) for name, kind in parts}


def entry(
    build: Callable[[], nn.Module], batch: str, loss: Callable[..., Tensor] | None = None, **more: object
) -> Entry:
    """An Entry as a line of a table."""
    return Entry(build=build, batch=batch, loss=loss, **more)  # type: ignore[arg-type]  # fields of Entry by name


def _tensor(words: list[str], generator: torch.Generator) -> Tensor:
    """A tensor of `normal`, `unit` (0 to 1), `bool`, `sign` (-1 or 1), `int10` (below 10) or `int1-5` (1 to 5)."""
    kind, shape = words[0], [int(size) for size in words[1:]]
    if kind == "normal":
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "unit":
        return torch.rand(shape, generator=generator, dtype=torch.float64)
    if kind == "bool":
        return torch.rand(shape, generator=generator) < 0.7
    if kind == "sign":
        return (torch.randint(0, 2, shape, generator=generator) * 2 - 1).double()
    low, _, high = kind.removeprefix("int").rpartition("-")
    return torch.randint(int(low or 0), int(high) + bool(low), shape, generator=generator)
