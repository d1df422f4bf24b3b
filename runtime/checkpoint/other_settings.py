"""A checkpoint of a run with another precision, optimizer or model: what is read for what, and why it cannot go on.

    the checkpoint's weights    the plan's      weights and float32 masters are read from
    16 bits                     other 16 bits   masters, those too
    16 bits                     32 bits         masters (the weights are their rounding)
    32 bits                     16 bits         weights, masters too

An optimizer's state has no counterpart in another's; one that keeps none goes on from any, which is said.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from placer.runtime.checkpoint.stateful import Leaf, State
from placer.runtime.weights.tensor_chunks import TensorChunks

_OPTIMIZERS = {
    frozenset({"exp_avg", "exp_avg_sq"}): "adamw",
    frozenset({"momentum_buffer"}): "sgd with momentum",
    frozenset[str](): "sgd without momentum",
}


def requests(state: State, index: Metadata) -> tuple[State, ...]:
    """What to read one after the other into the memory of `state`, named as the checkpoint of `index` has it."""
    model, masters = _part(state, "model"), _part(state, "masters")
    other = {name for name, leaf in model.items() if _dtype(leaf) != _saved_dtype(index, name)}
    if not other:
        return (state,)
    held = index.state_dict_metadata
    first = {**state, "model": _without(model, other), "masters": _without(masters, other)}
    second: State = {**_named({name: leaf for name, leaf in masters.items() if name in other}, held)}
    for part, leaves in _named({name: model[name] for name in other}, held).items():
        first[part] = {**_part(first, part), **leaves}
    return (first, second) if second else (first,)


def unlike(state: State, index: Metadata) -> str | None:
    """Why the optimizer of a run goes on from no checkpoint of `index`, in words; None where that is not so."""
    saved, wanted = _saved_keys(index), optimizer_keys(state)
    if not wanted - saved:
        return None
    model = _part(state, "model")
    found = _told(saved, (_saved_dtype(index, name) for name in model))
    return (
        f"is of a run with {found}, the plan's has {_told(wanted, map(_dtype, model.values()))}: the optimizer's state "
        "cannot be taken over. Go on under a plan with the optimizer of the checkpoint (placer plan --optimizer, "
        "--momentum), or begin another run from its weights (placer weights, then --weights) in another --checkpoint"
    )


def left_out(path: Path, wanted: Container[str], index: Metadata) -> tuple[str, ...]:
    """What the checkpoint `path` has of its optimizer and a run does not read whose ranks have `wanted`, in words."""
    unread = {key for key in _saved_keys(index) if key not in wanted} - {"step"}
    if not unread:
        return ()
    return (
        f"the checkpoint {path} is of a run with {_told(_saved_keys(index), iter(()))}; the plan's optimizer keeps no "
        f"{', '.join(sorted(unread))}, which are left out: its steps are not those the run would have made",
    )


def optimizer_keys(state: State) -> set[str]:
    """The names of what the optimizer keeps of each parameter that a rank holds."""
    return {key for one in _part(state, "optimizer").values() if isinstance(one, dict) for key in one}


def model_names(state: State) -> tuple[str, ...]:
    """The parameters and buffers that a rank holds."""
    return tuple(_part(state, "model"))


def of_another_model(held: Collection[str], index: Metadata) -> str:
    """How the model of which ranks have `held` differs from that of the checkpoint of `index`; "" where it does not.

    Weights that are tied in one of them lack a name there, which fingerprints do not tell.
    """
    parts = [name.split(".", 1) for name in index.state_dict_metadata]
    saved = {name for kind, name in parts if kind == "model"}
    trained = {name.rpartition(".")[0] for kind, name in parts if kind == "optimizer"}
    lacking, more = sorted(set(held) - saved), sorted((saved & trained) - set(held))
    differing = (("the checkpoint has no", lacking), ("the model has no", more))
    return "; ".join(f"{who} {', '.join(names[:3])}" for who, names in differing if names)


def _saved_keys(index: Metadata) -> set[str]:
    return {name.rsplit(".", 1)[1] for name in index.state_dict_metadata if name.startswith("optimizer.")}


def _told(keys: set[str], dtypes: Iterator[torch.dtype | None]) -> str:
    """An optimizer with such a state, and the precision of what has such types."""
    kind = _OPTIMIZERS.get(frozenset(keys - {"step"}), f"an optimizer that keeps {', '.join(sorted(keys))}")
    floating = next((dtype for dtype in dtypes if dtype is not None and dtype.is_floating_point), None)
    return kind if floating is None else f"{kind} in {str(floating).removeprefix('torch.')}"


def _named(leaves: Mapping[str, Leaf], held: Container[str]) -> dict[str, State]:
    """Leaves by the part of the checkpoint that has the float32 values of each."""
    found: dict[str, State] = {}
    for name, leaf in leaves.items():
        found.setdefault("masters" if f"masters.{name}" in held else "model", {})[name] = leaf
    return found


def _part(state: Mapping[str, Leaf], name: str) -> State:
    found = state.get(name, {})
    assert isinstance(found, dict)
    return found


def _without(part: State, names: Container[str]) -> State:
    return {name: leaf for name, leaf in part.items() if name not in names}


def _dtype(leaf: Leaf) -> torch.dtype | None:
    """The type of a tensor; None of anything else."""
    tensor = leaf.tensor if isinstance(leaf, TensorChunks) else leaf
    return tensor.dtype if isinstance(tensor, torch.Tensor) else None


def _saved_dtype(index: Metadata, name: str) -> torch.dtype | None:
    """The type that the checkpoint has of a parameter or buffer; None where it has none."""
    found = index.state_dict_metadata.get(f"model.{name}")
    return found.properties.dtype if isinstance(found, TensorStorageMetadata) else None
