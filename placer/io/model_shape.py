"""The sizes of a model as tables print them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model's sizes; `kind` says how it is built. `vocabulary` is as it is run, padding included.

    Of mixtures: `experts` a layer, of which a token takes `chosen`, each `expert_inner` wide, `gated` or not. Of
    images: `sequence` is their height and width. `adapters`: rank of the adapters that alone are trained (LoRA); 0: all
    of it is. `written_out`: norms are made op by op.
    """

    kind: str
    layers: int = 0
    hidden: int = 0
    heads: int = 0
    key_heads: int = 0
    inner: int = 0
    vocabulary: int = 0
    sequence: int = 0
    head_size: int = 0
    experts: int = 0
    chosen: int = 0
    expert_inner: int = 0
    adapters: int = 0
    written_out: bool = False
    gated: bool = True

    @property
    def tokens(self) -> bool:
        """Whether its rows are sequences of tokens."""
        return not self.kind.startswith("res") and not self.kind.startswith("se-")
