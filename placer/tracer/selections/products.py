"""Products with weights of rows that masks select, which are of all rows: more work than the model does by itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from placer.tracer.selections.selected import refused

PRODUCTS = frozenset({
    "linear", "bilinear", "conv1d", "conv2d", "conv3d", "bmm", "scaled_dot_product_attention", "matmul", "mm",
})  # fmt: skip


@dataclass(slots=True)
class Products:
    """allowed: whether they are taken. missed: whether one was not, because that is not allowed. taken: which were."""

    allowed: bool = False
    missed: bool = False
    taken: set[str] = field(default_factory=set)

    def require(self, name: str) -> None:
        """Where the function of this name is such a product, it may be taken. Raises SelectionError."""
        if name not in PRODUCTS:
            return
        if not self.allowed:
            self.missed = True
            refused(f"{name} of a selection")
        self.taken.add(name)

    @property
    def notes(self) -> Collection[str]:
        """What a person is told of them."""
        if not self.taken:
            return ()
        said = ", ".join(sorted(self.taken))
        return (
            f"rows that a mask selects go through {said}: of all rows, of which the others count nothing, so that they "
            "take the time of all; in a submodule that is opaque (--opaque NAME) they are as few as the mask selects",
        )
