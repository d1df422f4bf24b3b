"""Our orders beside those of torch.distributed.pipelining, made in this process without ranks."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from torch.distributed.pipelining import schedules

from placer.plans.schedule import Actions, actions, parse, text


class Stage:
    """What torch's schedule classes ask of a stage to work out their order."""

    def __init__(self, index: int, positions: int, stages: int):
        self.stage_index, self.num_stages = index, stages
        self.group_size, self.group_rank = positions, index % positions
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.has_backward = False
        self.submod = SimpleNamespace(modules=list)
        self.stage_index_to_group_rank = {s: s % positions for s in range(stages)}
        self.group = self.device = self.dp_group = None


def torch_order(cls: str, positions: int, stages: int, microbatches: int) -> Actions:
    """The order of a torch schedule class, its communication and idle slots left out."""
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.ERROR)
    kind = getattr(schedules, cls)
    own = [Stage(s, positions, stages) for s in range(0, stages, positions)]
    made = kind(own if stages > positions or "Zero" in cls else own[0], microbatches)
    lines = [[str(a) for a in made.pipeline_order[p] if a is not None] for p in range(positions)]
    written = "\n".join(" ".join(a for a in line if "REDUCE" not in a) for line in lines)
    return parse(written)


SIZES = [(2, 2), (2, 5), (4, 4), (4, 9)]


@pytest.mark.parametrize(("positions", "microbatches"), SIZES)
def test_gpipe_follows_torch(positions: int, microbatches: int) -> None:
    assert actions("gpipe", positions, positions, microbatches) == torch_order(
        "ScheduleGPipe", positions, positions, microbatches
    )


@pytest.mark.parametrize(("positions", "microbatches"), SIZES)
def test_1f1b_follows_torch(positions: int, microbatches: int) -> None:
    ours = actions("1f1b", positions, positions, microbatches)
    theirs = torch_order("Schedule1F1B", positions, positions, microbatches)
    assert ours[:-1] == theirs[:-1]
    # torch 2.13 numbers the forwards of the last rank from 1 in this table (it runs them from 0).
    assert ours[-1] == tuple(a._replace(microbatch=a.microbatch - (a.kind == "F")) for a in theirs[-1])


@pytest.mark.parametrize(
    ("positions", "turns", "microbatches"), [(2, 2, 2), (2, 2, 4), (2, 3, 6), (4, 2, 4), (4, 2, 10), (4, 3, 3)]
)
def test_interleaved_follows_torch_wherever_torch_accepts_the_number_of_microbatches(
    positions: int, turns: int, microbatches: int
) -> None:
    stages = positions * turns
    assert text(actions("interleaved", positions, stages, microbatches)) == text(
        torch_order("ScheduleInterleaved1F1B", positions, stages, microbatches)
    )


@pytest.mark.parametrize(("positions", "microbatches"), [(2, 2), (2, 6), (4, 4), (4, 8), (3, 2)])
def test_zero_bubble_follows_torch_with_one_stage_per_position(positions: int, microbatches: int) -> None:
    assert text(actions("zero-bubble", positions, positions, microbatches)) == text(
        torch_order("ScheduleInterleavedZeroBubble", positions, positions, microbatches)
    )


def test_interleaved_takes_a_number_of_microbatches_that_torch_refuses() -> None:
    with pytest.raises(ValueError, match="multiple of the number of rounds"):
        torch_order("ScheduleInterleaved1F1B", 2, 4, 5)
    assert len(actions("interleaved", 2, 4, 5)[0]) == 2 * 2 * 5
