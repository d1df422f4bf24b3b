"""Weights in a Hugging Face folder: model.safetensors, or several with model.safetensors.index.json; read by slices.
`pretrained` gives them as a Source: names are told from the model's, and every difference is refused.

A tensor of the model is a formula over tensors of the files: one of them, or several put together as transformers'
own table for the model says (experts that lie apart in the files and are one tensor in the model). A part of it is read
without the rest: only the slices of the files that it is made of.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from placer.errors import UsageError
from placer.io.files import parsed_json, read_text
from placer.runtime.storage.checksums import Checksums, read_list, require_written
from placer.runtime.storage.tensor_files import TensorFile
from placer.runtime.weights.rank_weights import Box, Ranges, Source, between
from placer.runtime.weights.same_numbers import same_numbers

INDEX = "model.safetensors.index.json"
ONE_FILE = "model.safetensors"
# How safetensors names types of fractions: F32, BF16, F8_E4M3.
_FLOATING = ("F", "BF")
# So many numbers of two tensors are compared at once.
_COMPARED = 2**21


class _Slice(Protocol):
    """What safetensors gives for a tensor of a file."""

    def get_shape(self) -> list[int]: ...

    def get_dtype(self) -> str: ...

    def __getitem__(self, at: tuple[slice, ...]) -> torch.Tensor: ...


class _Handle(Protocol):
    """What safetensors gives for a file."""

    def keys(self) -> list[str]: ...

    def get_tensor(self, key: str) -> torch.Tensor: ...

    def get_slice(self, key: str) -> _Slice: ...


class Formula(Protocol):
    """How a tensor of the model is made of tensors in files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all of it."""
        ...

    def read(self, box: Box) -> torch.Tensor:
        """A part of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Tensor `key` of an open file. checked: what holds it to its checksums, where it has any."""

    file: _Handle
    key: str
    shape: tuple[int, ...]
    checked: TensorFile | None = None

    def read(self, box: Box) -> torch.Tensor:
        """The slices of the file, put together. Raises UsageError where they are not what was written."""
        if self.checked is not None:
            rows = self.shape[0] if self.shape else 1
            ranges = dict(box.cuts).get(0, ((0, rows),))
            first, last = min(start for start, _ in ranges), max(end for _, end in ranges)
            self.checked.verify(self.key, first, last, rows)
        if not self.shape:
            return self.file.get_tensor(self.key).clone()
        return self._read(dict(box.cuts), ())

    def _read(self, cuts: Mapping[int, Ranges], taken: tuple[slice, ...]) -> torch.Tensor:
        dim = len(taken)
        if dim == len(self.shape):
            # What safetensors gives keeps the memory of all of it (0.8), which a copy lets go.
            return self.file.get_slice(self.key)[taken].clone()
        ranges = cuts.get(dim, ((0, self.shape[dim]),))
        return _joined([self._read(cuts, (*taken, slice(start, end))) for start, end in ranges], dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """`parts` of one shape along a new dim 0."""

    parts: tuple[Formula, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of parts, then theirs."""
        return (len(self.parts), *self.parts[0].shape)

    def read(self, box: Box) -> torch.Tensor:
        """The same of each part that is asked for."""
        cuts = dict(box.cuts)
        ranges = cuts.pop(0, ((0, len(self.parts)),))
        inner = Box(shape=self.shape[1:], cuts=tuple((dim - 1, found) for dim, found in sorted(cuts.items())))
        found = [self.parts[index].read(inner) for start, end in ranges for index in range(start, end)]
        return torch.stack(found) if found else torch.empty(0, *inner.taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """`parts` one after another along `dim`."""

    dim: int
    parts: tuple[Formula, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of a part, longer."""
        first = self.parts[0].shape
        return (*first[: self.dim], sum(part.shape[self.dim] for part in self.parts), *first[self.dim + 1 :])

    def read(self, box: Box) -> torch.Tensor:
        """What each part has of it, in the order asked for."""
        cuts = dict(box.cuts)
        ranges = cuts.pop(self.dim, ((0, self.shape[self.dim]),))
        found = [piece for start, end in ranges for piece in self._between(start, end, cuts)]
        return _joined(found, self.dim)

    def _between(self, start: int, end: int, cuts: Mapping[int, Ranges]) -> Iterable[torch.Tensor]:
        before = 0
        for part in self.parts:
            size = part.shape[self.dim]
            own = between(((0, size),), max(0, start - before), min(size, end - before))
            before += size
            if own[0][0] < own[0][1] or len(self.parts) == 1:
                yield part.read(Box(shape=part.shape, cuts=tuple(sorted({**cuts, self.dim: own}.items()))))


def leaves(folder: Path) -> dict[str, Leaf]:
    """Every tensor in the folder by its key. Raises UsageError where there are no safetensors, or a file is missing."""
    found: dict[str, Leaf] = {}
    sums = read_list(folder)
    for file in _files(folder, sums):
        checked = TensorFile.of(file, sums) if sums else None
        handle = _opened(file)
        for key in handle.keys():  # noqa: SIM118 - a handle is no mapping
            shape = tuple(handle.get_slice(key).get_shape())
            found[key] = Leaf(file=handle, key=key, shape=shape, checked=checked)
    return found


def _files(folder: Path, sums: Mapping[str, Checksums]) -> tuple[Path, ...]:
    index = folder / INDEX
    if index.is_file():
        if sums:
            require_written(index, sums)
        content = parsed_json(read_text(index, "the index of weights"), f"the index {index}")
        names = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(names, dict):
            raise UsageError(f"{index} has no weight_map; give a folder that `save_pretrained` wrote")
        files = tuple(sorted({folder / str(name) for name in names.values()}))
    else:
        files = (folder / ONE_FILE,)
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise UsageError(
            f"--weights {folder} {_lacking(folder, missing)}; give a Hugging Face folder with model.safetensors, "
            "or with all the files its index names"
        )
    return files


def _lacking(folder: Path, missing: Sequence[str]) -> str:
    """What keeps a path from being a folder of weights, in words."""
    if not folder.is_dir():
        return "is a file" if folder.exists() else "does not exist"
    others = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".safetensors"))
    if missing != [ONE_FILE] or not others:
        return f"has no {', '.join(missing[:3])}"
    several = f" and {len(others) - 2} more" if len(others) > 2 else ""
    if any(name.endswith(".safetensors") for name in others):
        why = f"whose index {INDEX} is missing"
    else:
        why = "and pickled files are not read, as they can run code: save what they hold with safetensors"
    return f"has no {ONE_FILE}, only {', '.join(others[:2])}{several}, {why}"


def _opened(file: Path) -> _Handle:
    try:
        return cast(_Handle, safe_open(str(file), framework="pt", device="cpu"))
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{file} cannot be read as safetensors: {error}; copy it again") from None


def _joined(found: list[torch.Tensor], dim: int) -> torch.Tensor:
    return found[0] if len(found) == 1 else torch.cat(found, dim)


class Pretrained:
    """Weights by `formulas`; `rest` gives what no folder holds: buffers that the model computes itself."""

    def __init__(self, formulas: Mapping[str, Formula], rest: Source) -> None:
        self._formulas, self._rest = formulas, rest

    def read(self, name: str, box: Box) -> torch.Tensor:
        """The slices of the files."""
        formula = self._formulas.get(name)
        return self._rest.read(name, box) if formula is None else formula.read(box)


def pretrained(folder: str, model: nn.Module, rest: Source) -> Pretrained:
    """The weights of `folder` for `model`, of which names and shapes count.

    Raises UsageError for what is no such folder, and for missing, unexpected and differently shaped weights.
    """
    found = _renamed(leaves(Path(folder)), model)
    names = model.state_dict(keep_vars=True)
    alike: dict[int, list[str]] = {}
    for name, tensor in names.items():
        alike.setdefault(id(tensor), []).append(name)
    missing = [same[0] for same in alike.values() if not any(name in found for name in same)]
    unexpected = [name for name in found if name not in names and not _ignored(name, model)]
    _refuse(folder, model, missing, unexpected)
    formulas = {name: next(found[n] for n in same if n in found) for same in alike.values() for name in same}
    _refuse_integers(folder, formulas, names)
    wrong = {name: one.shape for name, one in formulas.items() if one.shape != tuple(names[name].shape)}
    if wrong:
        listed = ", ".join(
            f"{n} is {shape}, the model's {tuple(names[n].shape)}" for n, shape in list(wrong.items())[:3]
        )
        raise UsageError(f"--weights {folder} is of another size than the model: {listed}; give the model's own folder")
    for same in alike.values():
        _refuse_unlike(folder, model, [(name, found[name]) for name in same if name in found])
    return Pretrained(formulas, rest)


def _refuse(folder: str, model: nn.Module, missing: list[str], unexpected: list[str]) -> None:
    told = [
        f"{words} {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        for words, names in (("lacks", missing), ("has what the model has not:", unexpected))
        if names
    ]
    if told:
        raise UsageError(
            f"--weights {folder} {' and '.join(told)}; it must hold the weights of {type(model).__name__} by its own "
            "names, as save_pretrained writes them"
        )


def _refuse_integers(folder: str, formulas: Mapping[str, Formula], names: Mapping[str, torch.Tensor]) -> None:
    """Raise UsageError for integers (quantised weights) that would be taken for the fractions of the model."""
    for name, formula in formulas.items():
        for leaf in _leaves_of(formula) if names[name].is_floating_point() else ():
            held = leaf.file.get_slice(leaf.key).get_dtype()
            if not held.startswith(_FLOATING):
                raise UsageError(
                    f"--weights {folder} has {leaf.key} as {held}, and the model's {name} is floating: integers would "
                    "be taken for its values; save weights in a floating type, quantised ones as what they stand for"
                )


def _refuse_unlike(folder: str, model: nn.Module, tied: Sequence[tuple[str, Formula]]) -> None:
    """Raise UsageError where the files hold unlike values under several names of one tensor of the model."""
    for name, formula in tied[1:]:
        first, kept = tied[0]
        if not _alike(kept, formula):
            raise UsageError(
                f"--weights {folder} holds unlike values for {first} and {name}, which are one tensor of "
                f"{type(model).__name__}; build the model without that tie, or leave one of the two out of the files"
            )


def _alike(one: Formula, other: Formula) -> bool:
    """Whether two formulas give the same numbers; read by pieces of dim 0, so that neither is in memory whole."""
    if one.shape != other.shape:
        return False
    rows = one.shape[0] if one.shape else 1
    step = max(1, _COMPARED * rows // max(1, math.prod(one.shape)))
    for start in range(0, rows, step):
        cuts = ((0, ((start, min(rows, start + step)),)),) if one.shape else ()
        box = Box(shape=one.shape, cuts=cuts)
        if not same_numbers(one.read(box), other.read(box)):
            return False
    return True


def _leaves_of(formula: Formula) -> Iterator[Leaf]:
    """The tensors of files that a tensor is made of."""
    if isinstance(formula, Leaf):
        yield formula
    elif isinstance(formula, Stacked | Joined):
        for part in formula.parts:
            yield from _leaves_of(part)


def _ignored(name: str, model: nn.Module) -> bool:
    """What transformers passes over, and buffers that are not kept."""
    patterns = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    buffers = dict(model.named_buffers(remove_duplicate=False))
    return name in buffers or any(re.search(pattern, name) for pattern in patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Converter:
    """How transformers makes one tensor of several. operations: their names; dims: of those that have one."""

    patterns: tuple[str, ...]
    operations: tuple[str, ...]
    dims: Mapping[str, int]


def _renamed(found: Mapping[str, Leaf], model: nn.Module) -> dict[str, Formula]:
    """The formulas of the model's tensors, by transformers' table for the model; other models' names are their own."""
    if not hasattr(model, "config") or not hasattr(model, "base_model_prefix"):
        return dict(found)
    from transformers import conversion_mapping, core_model_loading

    table = conversion_mapping.get_model_conversion_mapping(model)
    converters = [one for one in table if isinstance(one, core_model_loading.WeightConverter)]
    renamings = [one for one in table if isinstance(one, core_model_loading.WeightRenaming)]
    by_pattern = {pattern: _converter(one) for one in converters for pattern in one.source_patterns}
    known = dict(model.state_dict(keep_vars=True))
    formulas: dict[str, Formula] = {}
    parts: dict[str, dict[str, list[Leaf]]] = {}
    for key in sorted(found, key=core_model_loading.dot_natural_key):
        name, pattern = core_model_loading.rename_source_key(
            key, renamings, converters, str(model.base_model_prefix), known
        )
        if key in known or pattern is None:
            formulas[key if key in known else name] = found[key]
        else:
            parts.setdefault(name, {}).setdefault(pattern, []).append(found[key])
    return formulas | {name: _formula(name, by_pattern[next(iter(every))], every) for name, every in parts.items()}


def _converter(given: object) -> _Converter:
    operations = list(getattr(given, "operations", ()))
    return _Converter(
        patterns=tuple(getattr(given, "source_patterns", ())),
        operations=tuple(type(one).__name__ for one in operations),
        dims={type(one).__name__: int(one.dim) for one in operations if getattr(one, "dim", None) is not None},
    )


def _formula(name: str, how: _Converter, found: Mapping[str, list[Leaf]]) -> Formula:
    """The formula of a tensor that lies in several: experts stacked, then products side by side."""
    known = how.operations in (("MergeModulelist",), ("Concatenate",), ("MergeModulelist", "Concatenate"))
    if not known or how.dims.get("MergeModulelist", 0):
        raise UsageError(
            f"the weights of {name} are put together by {', '.join(how.operations)}, which cannot be read by slices; "
            "load the model with transformers, save its state_dict with safetensors, and give that folder"
        )
    parts: list[Formula] = []
    for pattern in how.patterns:
        lie = found.get(pattern, [])
        parts += [Stacked(parts=tuple(lie))] if "MergeModulelist" in how.operations and lie else lie
    return parts[0] if len(parts) == 1 else Joined(dim=how.dims.get("Concatenate", 0), parts=tuple(parts))
