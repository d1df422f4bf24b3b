"""A model as frameworks that cut pipelines see it: what is before its layers, the layers, what is behind them.

Blocks `model.layers.0`, `model.layers.1`, ... that follow each other are the stack; a model with several stacks (an
encoder and a decoder) has none, since no target cuts those at will.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from placer.graph import Graph

_LAYER = re.compile(r"(?P<path>.+)\.(?P<number>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePart:
    """What a pipeline stage holds: layers `first` to `last` (exclusive), and whether what is before and behind all."""

    first: int
    last: int
    before: bool
    behind: bool

    @property
    def layers(self) -> int:
        """How many layers."""
        return self.last - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStack:
    """The modules of a model in order: `before`, then `count` layers `path.0`, `path.1`, ..., then `behind`."""

    before: tuple[str, ...]
    path: str
    count: int
    behind: tuple[str, ...]

    @staticmethod
    def of(graph: Graph) -> LayerStack | str:
        """The stack of a model; in words why it has none."""
        found = [_LAYER.fullmatch(block.name) for block in graph.blocks]
        paths = {match["path"] for match in found if match}
        if not paths:
            return f"{graph.name} has no stack of numbered layers"
        if len(paths) > 1:
            return f"{graph.name} has several stacks of layers ({', '.join(sorted(paths))})"
        at = [index for index, match in enumerate(found) if match]
        numbers = [int(match["number"]) for match in found if match]
        if numbers != list(range(len(numbers))) or any(b != a + 1 for a, b in pairwise(at)):
            return f"the layers {next(iter(paths))} do not follow each other one by one"
        names = [block.name for block in graph.blocks]
        return LayerStack(
            before=_modules(names[: at[0]]), path=paths.pop(), count=len(at), behind=_modules(names[at[-1] + 1 :])
        )

    def part(self, graph: Graph, first: int, last: int) -> StagePart | str:
        """What the blocks `first` to `last` (exclusive) hold; in words where they cut what is before or behind."""
        start = next(i for i, block in enumerate(graph.blocks) if _LAYER.fullmatch(block.name))
        end = start + self.count
        if 0 < last < start or 0 < first < start:
            return f"a stage ends between {' and '.join(self.before)}, before the first layer"
        if end < first < len(graph.blocks) or end < last < len(graph.blocks):
            return f"a stage begins between {' and '.join(self.behind)}, behind the last layer"
        return StagePart(
            first=min(max(first - start, 0), self.count), last=min(max(last - start, 0), self.count),
            before=first < start <= last, behind=first <= end < last,
        )  # fmt: skip

    def names(self, part: StagePart) -> tuple[str, ...]:
        """The modules of a part by their names in the model."""
        layers = tuple(f"{self.path}.{number}" for number in range(part.first, part.last))
        return (*(self.before if part.before else ()), *layers, *(self.behind if part.behind else ()))


def layers_among(graph: Graph, first: int, last: int) -> int:
    """How many of the blocks `first` to `last` (exclusive) are numbered layers."""
    return sum(_LAYER.fullmatch(block.name) is not None for block in graph.blocks[first:last])


def _modules(names: list[str]) -> tuple[str, ...]:
    """The modules that blocks are called after: a block `model.norm+lm_head` is two."""
    return tuple(dict.fromkeys(part for name in names for part in name.partition("@")[0].split("+") if part != "..."))
