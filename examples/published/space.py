"""What a published layout was chosen among: degrees of tensor, pipeline and data parallelism, and the microbatch.

The plan we choose without pins is rarely the published one, since most of our space (sharded state, no recompute, other
schedules, uneven stages) is not in theirs. Here the choice is among layouts that differ from the published one only in

    tensor      powers of two up to a node
    pipeline    divisors of the layers
    data        all devices that are left
    microbatch  powers of two up to MOST_ROWS that divide a replica's rows
    virtual     divisors of a position's layers, where the published layout interleaves

with its recompute, sharding and experts; stages are even, and the split of the ops is Megatron's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from examples.published.runs import Run
from placer.strategies.baselines.megatron import MegatronDegrees
from placer.strategies.space.outline import divisors, powers_of_two

MOST_ROWS = 16


def around(run: Run, published: MegatronDegrees) -> Iterator[MegatronDegrees]:
    """The layouts that `published` was chosen among, itself one of them."""
    layers = run.common.layers if run.common is not None else 1
    node = int(run.cluster.partition("@")[0].rpartition("x")[2].partition("*")[0])
    base = replace(published, sequence=run.layouts[0].sequence, schedule="1f1b")
    found = {base: None}
    for tensor in powers_of_two(node) if published.expert == 1 else (1,):
        for pipeline in divisors(layers):
            data, rest = divmod(run.devices, tensor * pipeline)
            if rest or not data or run.rows % data or data % published.expert:
                continue
            for turns in divisors(layers // pipeline) if published.virtual > 1 and pipeline > 1 else (1,):
                degrees = replace(base, tensor=tensor, pipeline=pipeline, data=data, virtual=turns)
                degrees = replace(degrees, sharding=base.sharding if data > 1 else "none")
                found |= dict.fromkeys(replace(degrees, rows=rows) for rows in _rows(run.rows // data))
    yield from found


def _rows(share: int) -> Iterator[int]:
    return (rows for rows in powers_of_two(min(MOST_ROWS, share)) if share % rows == 0)
