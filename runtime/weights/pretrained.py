"""The weights of a Hugging Face folder as a Source: its names told from the model's, and every difference refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from placer.errors import UsageError
from placer.runtime.weights.hf_folder import Formula, Joined, Leaf, Stacked, leaves
from placer.runtime.weights.sources import Box, Source


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
    wrong = {name: one.shape for name, one in formulas.items() if one.shape != tuple(names[name].shape)}
    if wrong:
        listed = ", ".join(
            f"{n} is {shape}, the model's {tuple(names[n].shape)}" for n, shape in list(wrong.items())[:3]
        )
        raise UsageError(f"--weights {folder} is of another size than the model: {listed}; give the model's own folder")
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
