"""FAMILIES and ENTRIES: all models of the zoo."""

from __future__ import annotations

from dataclasses import replace

from examples.parity.zoo.models import (
    algorithms,
    architectures,
    buffers,
    contrastive,
    convolutions,
    criteria,
    forms,
    layers,
    losses,
    normed,
    parameters,
    rows,
    selection,
    sequences,
    sharing,
    views,
)
from examples.parity.zoo.models.second import (
    alike_blocks,
    autocast_regions,
    auxiliary_losses,
    batch_losses,
    hooks,
    inner_gradients,
    kept_numbers,
    kept_tensors,
    merged_rows,
    own_backward,
    passed_numbers,
    picked_rows,
    plain_constants,
    ragged_losses,
    shifted_rows,
    sizes,
    weights,
    wrapped_parts,
)
from examples.parity.zoo.models.third import asks_for_ranks, counted_rows, routed, taken_for_granted

FAMILIES = {
    1: "rows that mix",
    2: "losses of losses",
    3: "writes through views",
    4: "buffers written in forward",
    5: "parameters of all kinds",
    6: "torch.nn in breadth",
    7: "algorithms and architectures",
    8: "forms of input and output",
    9: "a second stranger's",
    10: "what a capture takes for granted",
}
_FILES = {
    1: (rows, contrastive),
    2: (losses, criteria),
    3: (views,),
    4: (buffers, normed),
    5: (parameters, sharing),
    6: (layers, convolutions),
    7: (algorithms, selection, architectures, sequences),
    8: (forms,),
    9: (
        alike_blocks, autocast_regions, auxiliary_losses, batch_losses, hooks, inner_gradients, kept_numbers,
        kept_tensors, merged_rows, own_backward, passed_numbers, picked_rows, plain_constants, ragged_losses,
        shifted_rows, sizes, weights, wrapped_parts,
    ),
    10: (routed, counted_rows, taken_for_granted, asks_for_ranks),
}  # fmt: skip
ENTRIES = tuple(
    replace(one, family=family) for family, files in _FILES.items() for file in files for one in file.ENTRIES
)
