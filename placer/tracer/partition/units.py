"""Units: the modules of a model that are placed whole, from the tree of its modules.

A *stack* is a ModuleList or Sequential whose weighted children are of one class; each child is a unit. A stack inside a
unit is followed where cutting inside it moves no more values than cutting around the unit (the stages of a ResNet hold
residual blocks), and left alone where it does (the convolutions inside a residual block). A model without stacks is
divided into the children of its heaviest modules.
"""

from __future__ import annotations

from torch import fx, nn

from placer.tracer.export.cleaning import within


def units_of(model: nn.Module, order: list[fx.Node], values: list[int]) -> list[str]:
    """Paths of the modules that are placed whole; `values` is how many cross each position of the order."""
    found: list[str] = []
    for path, module in model.named_children():
        found.extend(_stacked_units(module, path))
    found = [part for unit in found for part in _refined(model.get_submodule(unit), unit, order, values)]
    return found or _heavy_children(model)


def _stacked_units(module: nn.Module, path: str) -> list[str]:
    weighted = [name for name, child in module.named_children() if _elements(child)]
    if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(weighted) > 1:
        children = dict(module.named_children())
        if len({type(children[name]) for name in weighted}) == 1:
            return [f"{path}.{name}" for name in weighted]
    return [unit for name, child in module.named_children() for unit in _stacked_units(child, f"{path}.{name}")]


def _refined(module: nn.Module, path: str, order: list[fx.Node], values: list[int]) -> list[str]:
    parts = [unit for name, child in module.named_children() for unit in _stacked_units(child, f"{path}.{name}")]
    if len(parts) < 2:
        return [path]
    inside = [_span(part, order) for part in parts]
    whole = _span(path, order)
    if whole is None or any(span is None for span in inside):
        return [path]
    starts = [span[0] for span in inside[1:] if span is not None]
    if max(values[at] for at in starts) > max(values[whole[0]], values[whole[1]], 1):
        return [path]
    return [
        piece for part in parts for piece in _refined(module.get_submodule(part[len(path) + 1 :]), part, order, values)
    ]


def _span(path: str, order: list[fx.Node]) -> tuple[int, int] | None:
    positions = [index for index, node in enumerate(order) if within(node.meta["module"], path)]
    return (positions[0], positions[-1] + 1) if positions else None


def _heavy_children(model: nn.Module) -> list[str]:
    """For a model without stacks: its weighted children, those that hold most of the weight opened."""
    total = _elements(model)
    found: list[str] = []
    pending = [(name, child) for name, child in model.named_children() if _elements(child)]
    while pending:
        path, module = pending.pop(0)
        children = [(f"{path}.{name}", child) for name, child in module.named_children() if _elements(child)]
        if children and 2 * _elements(module) > total:
            pending = children + pending
        else:
            found.append(path)
    return found


def _elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
