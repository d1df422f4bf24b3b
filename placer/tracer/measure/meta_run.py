"""The graph played on meta tensors, node by node: shapes, which values need gradients, what autograd keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx, nn
from torch._prims_common import suggest_memory_format
from torch.fx.node import Argument
from torch.utils import _pytree

from placer.rules.registry import kind_of
from placer.tracer.export.cleaning import Plain, target_name
from placer.tracer.export.unseen import unplayable
from placer.tracer.measure.call_cache import Keeping, Replays, storage_of

aten = torch.ops.aten
DROPS = 4  # the place of `dropout_p` among the arguments of attention
IMAGES = 4  # dims: rows, channels, height, width
# Bytes of a floating number where it is not to matter how many it has.
_FLOAT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What one node did: its results (tensors on meta, or a size), the storages of its tensors, what it kept, and
    whether its results had a gradient then: what writes into them later may give them one."""

    value: object
    results: tuple[torch.Tensor, ...]
    kept: tuple[Keeping, ...]
    trained: bool

    @property
    def result_bytes(self) -> int:
        """Bytes of its results, each floating number as one of 32 bits: the same in every precision of the model."""
        return sum(
            result.numel() * (_FLOAT if result.is_floating_point() else result.element_size())
            for result in self.results
        )


def played(plain: Plain, inputs: dict[str, torch.Tensor]) -> dict[fx.Node, Played]:
    """Every node of the graph played on `inputs` (meta tensors by name). Raises UnseenError for what needs values."""
    player = _MetaRun(plain)
    with torch.autograd.graph.saved_tensors_hooks(player.keep, lambda kept: kept):
        return player.play(inputs)


class _MetaRun:
    def __init__(self, plain: Plain):
        self._graph = plain.graph
        self._state = {name: meta_like(tensor) for name, tensor in plain.state.items()}
        self._alive: list[torch.Tensor] = []
        self._keeping: list[Keeping] = []
        self._replays = Replays()

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """The hook: note what is kept."""
        # KeptStorage tensors stay alive, so that no later storage gets the identity of an earlier one.
        self._alive.append(tensor)
        self._keeping.append(Keeping(storage_of(tensor), tensor.untyped_storage().nbytes()))
        return tensor

    def play(self, inputs: dict[str, torch.Tensor]) -> dict[fx.Node, Played]:
        """Play all nodes in order. Raises UnseenError for one that cannot be run on meta."""
        found: dict[fx.Node, Played] = {}
        for node in self._graph.nodes:
            if node.op == "output":
                continue
            self._keeping = []
            try:
                value = self._value(node, inputs, found)
            except Exception as error:
                source, module = (str(node.meta.get(name, "")) for name in ("source", "module"))
                raise unplayable(target_name(node), node.target, source, module, error) from error
            results = _tensors(value)
            trained = any(result.requires_grad for result in results)
            found[node] = Played(value=value, results=results, kept=tuple(self._keeping), trained=trained)
        return found

    def _value(self, node: fx.Node, inputs: dict[str, torch.Tensor], found: dict[fx.Node, Played]) -> object:
        if node.op == "placeholder":
            return inputs[str(node.target)]
        if node.op == "get_attr":
            return self._state[str(node.target)]

        def value_of(argument: fx.Node) -> Argument:
            return cast("Argument", found[argument].value)

        arguments = cast("tuple[object, ...]", fx.map_arg(node.args, value_of))
        keywords = cast("dict[str, object]", fx.map_arg(node.kwargs, value_of))
        if any(isinstance(argument, torch.device) for argument in (*node.args, *node.kwargs.values())):
            arguments = cast("tuple[object, ...]", _on_meta(arguments))
            keywords = cast("dict[str, object]", _on_meta(keywords))
        assert callable(node.target)
        made = self._replays.call(_as_run(node.target, arguments), arguments, keywords, self._keeping)
        return _as_laid_out(node, arguments, made)


def _as_laid_out(node: fx.Node, arguments: tuple[object, ...], made: object) -> object:
    """The result of a convolution of images as devices lay it out: channels last where its input or its weight is
    (ATen, `cudnn_conv_suggest_memory_format`, `mkldnn_conv_use_channels_last`)."""
    if not isinstance(made, torch.Tensor) or made.dim() != IMAGES or kind_of(target_name(node)) != "convolution":
        return made
    return made.contiguous(memory_format=torch.channels_last) if any(map(lies_last, arguments[:2])) else made


def lies_last(value: object) -> bool:
    """Whether a tensor of images has its channels last."""
    if not isinstance(value, torch.Tensor) or value.dim() != IMAGES:
        return False
    return suggest_memory_format(value) is torch.channels_last


def _as_run(target: Callable[..., object], arguments: tuple[object, ...]) -> Callable[..., object]:
    """What a run calls for `target`: it makes masks of dropout itself, of one byte per element (`runtime.dropout`)."""
    if target in (aten.dropout.default, aten.dropout_.default):
        return _dropout if arguments[1] and arguments[2] else target
    drops = target is aten.scaled_dot_product_attention.default and len(arguments) > DROPS and arguments[DROPS]
    return _attention if drops else target


def _dropout(values: torch.Tensor, probability: float, training: bool = True) -> torch.Tensor:
    made: torch.Tensor = aten.native_dropout(values, probability, training)[0]
    return made


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, probability: float,
    causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = query @ key.transpose(-2, -1) * (1.0 if scale is None else scale)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device), 0.0)
    if mask is not None:
        scores = scores.masked_fill(~mask, 0.0) if mask.dtype == torch.bool else scores + mask
    return _dropout(scores.softmax(-1), probability) @ value


def _tensors(value: object) -> tuple[torch.Tensor, ...]:
    """The tensors of a result; mostly it is one, for which the general walk would take as long as the call."""
    if isinstance(value, torch.Tensor):
        return (value,)
    return tuple(leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


def meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor or parameter like this one, without memory."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(torch.empty_like(tensor, device="meta"), requires_grad=tensor.requires_grad)
    return torch.empty_like(tensor, device="meta")


def _on_meta(arguments: object) -> object:
    return _pytree.tree_map(lambda leaf: torch.device("meta") if isinstance(leaf, torch.device) else leaf, arguments)
