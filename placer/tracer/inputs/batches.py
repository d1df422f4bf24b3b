"""Example batches: tensors, shapes or text, normalised to names, shapes and dtypes; real random ones for a Graph."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
from torch import nn

from placer.errors import UsageError
from placer.graph import Graph, Input, Values
from placer.tracer.inputs.batch_checks import require_countable, require_names, require_rows
from placer.tracer.inputs.constants import Constant, constant_of, tensor_of, values_of
from placer.tracer.inputs.implied_batch import Implied, implied_shapes, label_shapes, require_positions
from placer.tracer.inputs.named_shapes import named_shapes

# Characters of what is no tensor beyond which a message says its type alone.
_LONG = 80

BatchLike = Mapping[str, object] | Sequence[object] | torch.Tensor | str | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInput:
    """One input: `shape` for one batch of the example's rows; where `batched`, dim 0 is the rows.

    guessed: nobody said what type it has. values: those of a constant, in the type that it was given in.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    batched: bool
    guessed: bool = False
    values: Values | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A normalised example batch: `rows` of it, its inputs in order, and what was assumed to make it."""

    rows: int
    entries: tuple[BatchInput, ...]
    assumptions: tuple[str, ...] = ()

    def tensors(self, rows: int, device: torch.device | str) -> dict[str, torch.Tensor]:
        """Zero tensors for `rows` rows."""
        shapes = {e.name: ((rows, *e.shape[1:]) if e.batched else e.shape, e.dtype) for e in self.entries}
        return {name: torch.zeros(shape, dtype=dtype, device=device) for name, (shape, dtype) in shapes.items()}

    def constants(self, rows: int) -> dict[str, torch.Tensor]:
        """The values, on the CPU, of the inputs that are the same in every step, for `rows` rows."""
        return {
            e.name: tensor_of(e.values, e.shape, e.dtype, rows if e.batched else None)
            for e in self.entries
            if e.values is not None
        }

    @property
    def uneven(self) -> str:
        """A constant whose rows are not alike, so that pieces of the batch have other ones; "" where there is none."""
        made = self.constants(self.rows)
        return next((e.name for e in self.entries if e.batched and e.name in made and not _alike(made[e.name])), "")

    def fixed(self) -> Batch:
        """The batch of just these rows, whose number is a size like others."""
        return replace(self, entries=tuple(replace(entry, batched=False) for entry in self.entries))


def normalised(model: nn.Module, batch: BatchLike, *, devices: int = 1, own_loss: bool = False) -> Batch:
    """`batch` as names, shapes and dtypes for `model`.

    Tensors or shapes by input name, in the order of forward's arguments, or text: "8x128" (rows x the rest of the first
    input's shape), "8" (rows; the rest as the model implies), "x=8x64,y=8:int64" (shapes by name). None: one row per
    device of what the configuration implies. A shape may come with its type: ((8, 128), torch.int64), or "int64".
    What is a `Constant` is the same in every step.
    Labels are added to Hugging Face models unless `own_loss`. Raises UsageError where nothing implies a shape, and
    where names or rows do not fit.
    """
    config = getattr(model, "config", None)
    assumptions: tuple[str, ...] = ()
    found: Mapping[str, object]
    if isinstance(batch, str) and "=" in batch:
        found = named_shapes(batch)
    elif batch is None or isinstance(batch, (str, int)):
        found, assumptions = _from_text(model, batch, devices)
    elif isinstance(batch, torch.Tensor):
        found = _by_position(model, (batch,))
    elif isinstance(batch, Mapping):
        found = batch
    elif isinstance(batch, Sequence):
        found = _by_position(model, batch)
    else:
        raise UsageError(f"the batch is {batch!r:.80}; give shapes or tensors by name, as in {{'x': (8, 64)}}, or 8x64")
    found = dict(sorted(found.items(), key=lambda one: isinstance(one[1], Constant)))  # rows are those of the others
    if not own_loss and config is not None and "labels" not in found:
        first = {name: _shape(name, value) for name, value in found.items()}
        found = {**found, **label_shapes(model, first)}
    sizes = {name: _shape(name, value) for name, value in found.items()}
    require_names(model, found, own_loss=own_loss)
    require_countable(sizes)
    require_rows(sizes)
    require_positions(model, sizes)
    return _batch(found, (*assumptions, *(_taken_by_name(found) if config is None else ())))


def with_integer_labels(batch: Batch, taken: Collection[str]) -> Batch | None:
    """`batch` with what may be classes as int64, where nobody said what type it has; None where there is none such.

    That is one number per row, and what forward does not take (`taken`), which is for the loss.
    """
    unsaid = [e for e in batch.entries if e.guessed and e.dtype.is_floating_point]
    changed = [e.name for e in unsaid if len(e.shape) == 1 or e.name not in taken]
    if not changed:
        return None
    entries = tuple(replace(e, dtype=torch.int64) if e.name in changed else e for e in batch.entries)
    note = f"{', '.join(changed)} of the batch taken for int64: with floating numbers the loss does not compute"
    return replace(batch, entries=entries, assumptions=(*batch.assumptions, note))


def random_batch(graph: Graph, rows: int, seed: int) -> dict[str, torch.Tensor]:
    """A real random batch on the CPU for the inputs of `graph`: integers within their range, masks of ones."""
    generator = torch.Generator().manual_seed(seed)
    return {entry.name: _random(entry, rows, generator) for entry in graph.inputs}


def _random(entry: Input, rows: int, generator: torch.Generator) -> torch.Tensor:
    shape = entry.tensor.shape_at(rows)
    dtype: torch.dtype = getattr(torch, entry.tensor.dtype)
    constant = constant_of(entry, rows, dtype)
    if constant is not None:
        return constant
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=dtype)
    if entry.high is None or dtype == torch.bool:
        # Nothing bounds it from above (a mask): ones are always valid.
        return torch.ones(shape, dtype=dtype)
    return torch.randint(0, entry.high, shape, generator=generator, dtype=dtype)


def _from_text(model: nn.Module, text: str | int | None, devices: int) -> Implied:
    sizes = _sizes(text)
    rows = sizes[0] if sizes else devices
    shapes, assumptions = implied_shapes(model, rows, sizes[1:])
    if not sizes:
        assumptions = (f"batch of {rows}: one row per device", *assumptions)
    return shapes, assumptions


def _sizes(text: str | int | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        sizes = tuple(int(part) for part in str(text).lower().split("x"))
    except ValueError:
        raise UsageError(
            f"the batch {text!r} is no shape; write rows x sizes, as in 8x128, or name the inputs"
        ) from None
    if any(size < 1 for size in sizes):
        raise UsageError(f"the batch {text!r} has a size below 1; write rows x sizes, as in 8x128")
    return sizes


def _by_position(model: nn.Module, values: Sequence[object]) -> dict[str, object]:
    names = [
        name
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(names) < len(values):
        raise UsageError(
            f"the batch has {len(values)} tensors, forward of {type(model).__name__} takes {len(names)} by position "
            f"({', '.join(names) or 'none'}); give a dict of names"
        )
    if values and all(isinstance(value, int) for value in values):
        return {names[0]: tuple(values)}
    return dict(zip(names, values, strict=False))


def _batch(found: Mapping[str, object], assumptions: tuple[str, ...]) -> Batch:
    if not found:
        raise UsageError("the batch is empty; give at least one input, as in {'input_ids': (8, 128)}")
    entries = []
    for name, value in found.items():
        shape = _shape(name, value)
        given = _given_dtype(name, value)
        dtype = given or _likely_dtype(name)
        values = values_of(value.tensor(name).to(dtype)) if isinstance(value, Constant) else None
        entries.append(
            BatchInput(
                name=name, shape=shape, dtype=dtype, batched=bool(shape), guessed=given is None, values=values
            )
        )  # fmt: skip
    rows = next((entry.shape[0] for entry in entries if entry.shape), 1)
    if rows < 1:
        raise UsageError(f"the batch has {rows} rows; give at least one")
    return Batch(
        rows=rows,
        entries=tuple(replace(entry, batched=bool(entry.shape) and entry.shape[0] == rows) for entry in entries),
        assumptions=assumptions,
    )


def _shape(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, Constant):
        return tuple(value.tensor(name).shape)
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if _is_typed(value):
        value = value[0]
    if isinstance(value, Sequence) and all(isinstance(size, int) and size >= 0 for size in value):
        return tuple(value)
    text = repr(value)
    found = f"a {type(value).__name__} of {len(value)}" if isinstance(value, Sized) and len(text) > _LONG else text
    raise UsageError(
        f"input {name!r} of the batch is {found}; give a tensor, a shape such as (8, 128), or (shape, torch dtype), "
        "each by a name of its own, and have a module around the model put together what its forward takes otherwise "
        "(dicts, lists, flags)"
    )


def _alike(rows: torch.Tensor) -> bool:
    return bool((rows == rows[:1]).all())


def _is_typed(value: object) -> TypeGuard[Sequence[object]]:
    """Whether a shape comes with its type."""
    pair = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2
    return pair and isinstance(value[1], torch.dtype | str)  # type: ignore[index]


def _given_dtype(name: str, value: object) -> torch.dtype | None:
    """The type an input is said to have; None where only its shape is given."""
    if isinstance(value, Constant):
        return value.dtype(name)
    if isinstance(value, torch.Tensor):
        return value.dtype
    if not _is_typed(value):
        return None
    found = value[1] if isinstance(value[1], torch.dtype) else getattr(torch, str(value[1]), None)
    if not isinstance(found, torch.dtype):
        raise UsageError(f"input {name!r} of the batch has the type {value[1]!r}; give {', '.join(DTYPES)}")
    return found


DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "bool")


# Inputs of these names are taken for whole numbers where no type is given; of the second ones it is told.
COUNTED = ("_ids", "ids", "labels", "label", "tokens", "index", "idx")
MAYBE_COUNTED = ("mask", "targets", "target")


def _likely_dtype(name: str) -> torch.dtype:
    return torch.int64 if name.endswith((*COUNTED, *MAYBE_COUNTED)) else torch.get_default_dtype()


def _taken_by_name(found: Mapping[str, object]) -> tuple[str, ...]:
    """What is told of inputs of a model of one's own whose names alone say that they are whole numbers."""
    names = [name for name, value in found.items() if name.endswith(MAYBE_COUNTED) and not _given_dtype(name, value)]
    if not names:
        return ()
    said = ",".join(f"{name}={'x'.join(map(str, _shape(name, found[name])))}:float32" for name in names)
    return (f"{', '.join(names)} of the batch taken for int64 by name; write {said} for floating numbers",)
