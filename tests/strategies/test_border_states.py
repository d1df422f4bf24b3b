"""How values between blocks may lie, where a block has many of them."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor, nn

from placer.api import problem, solve
from placer.search.problem import Problem
from placer.strategies.intra_op.block_borders import MOST_COMBINATIONS, Borders, combinations
from placer.strategies.intra_op.layouts import degrees, layouts


class Skips(nn.Module):
    """As a U-Net with a control net: what each of the layers gives enters one block at the end, smaller each time."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        widths = (4, *(8 * (depth - i) for i in range(depth)))
        self.blocks = nn.ModuleList(nn.Conv2d(widths[i], widths[i + 1], 3, 1, 1) for i in range(depth))
        self.head = nn.Linear(sum(widths[1:]), 1)

    def forward(self, images: Tensor) -> Tensor:
        skips = []
        for block in self.blocks:
            images = block(images)
            skips.append(images)
        made: Tensor = self.head(torch.cat([skip.mean((2, 3)) for skip in skips], 1)).mean()
        return made


def asked(depth: int, **pins: int) -> Problem:
    return problem(Skips(depth), "h100x2", batch={"images": (4, 4, 64, 64)}, pins=pins)


def states_of_largest(given: Problem) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Those that the class of the most groups has splits for, and what each group may be."""
    borders = Borders(given)
    states = borders.states(2, "height")
    kind = max(borders.of_class, key=lambda one: len(borders.of_class[one]))
    return list(combinations(borders, kind, states)), [states[group] for group in borders.of_class[kind]]


def test_a_block_of_few_values_has_a_split_for_each_way_in_which_they_lie() -> None:
    found, states = states_of_largest(asked(4))
    assert found == list(product(*states))
    assert len(found) == 2**4


def test_a_block_of_many_values_has_few_splits_whole_and_all_cut_among_them() -> None:
    found, states = states_of_largest(asked(7))
    assert len(found) == len(set(found)) == MOST_COMBINATIONS < 2**7
    assert {tuple(one[0] for one in states), tuple(one[-1] for one in states)} <= set(found)
    # The largest values, those of the first layers, lie as they like.
    assert {one[:4] for one in found} == set(product(*states[:4]))


def test_pins_that_leave_a_replica_one_device_ask_for_no_layouts() -> None:
    assert degrees(asked(2)) == (2,)
    for pins in ({"data": 2}, {"pipeline": 2}):
        given = asked(2, **pins)
        assert not degrees(given) and not layouts(given, given.costs)
        assert solve(given).meshes[0].layout is None
