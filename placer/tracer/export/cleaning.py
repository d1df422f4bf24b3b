"""From what torch.export gives to a plain graph: calls of operators, named parameters, inputs, one tuple of results.

Left out: metadata assertions and guards. No-grad regions (rotary tables) are inlined: what enters one from a parameter
passes through a detach, which has the same value and the same gradient.
Each node carries `meta["module"]` (its module's path), `meta["source"]` (file:line) and `meta["around"]` (whether it is
around the model: its loss, what it assigned to buffers).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx, nn
from torch.fx.node import Argument

from placer.errors import CaptureError, UncapturableError
from placer.rules.rows.draws import KEYED
from placer.tracer.export import explicit
from placer.tracer.export.constants import same_constant, settle_constants
from placer.tracer.export.exporting import Raw
from placer.tracer.export.state.own_tensors import OwnTensors
from placer.tracer.export.torchs_own.failures import MixedDevicesError

# The source of what the loss function does.
LOSS = "loss_fn"
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# The first modules of a list (`layers[:n]`), which torch 2.13 names so where any module of the model has two names: the
# ones that they are in the list.
_FIRST = re.compile(r"\bslice\((?:None|0), (?:None|-?\d+), (?:None|1)\)\.")
_DROPPED = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range_for_size")

# Norms with running statistics, by what says that they take those at hand.
_STATISTICS = {"batch_norm": "training", "instance_norm": "use_input_stats"}
# The place of `sparse` among the arguments.
_SPARSE_AT = {"aten::embedding": 4, "aten::embedding_bag": 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A clean graph and what its get_attr nodes name: parameters, buffers (by the model's names) and constants."""

    graph: fx.Graph
    state: dict[str, torch.Tensor]


def clean(raw: Raw, own: OwnTensors) -> Plain:
    """The plain graph of an exported module; `own` are the model's own tensors."""
    copier = _Copier(raw, own)
    results = copier.copy(raw.module, {})
    copier.graph.output(tuple(results))
    settle_constants(copier.graph, copier.attributes.union(own.by_name))
    return Plain(graph=copier.graph, state=copier.state)


def own_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by the model's own names, shared ones once."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def target_name(node: fx.Node) -> str:
    """`aten::linear` for an operator, `builtin::getitem` for a function."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target._schema.name)
    return f"builtin::{getattr(node.target, '__name__', node.target)}"


def short_name(node: fx.Node) -> str:
    """`linear` for a call of `aten::linear` or `aten::linear_`, "" for what is no call."""
    return target_name(node).rpartition("::")[2].rstrip("_") if node.op == "call_function" else ""


def told(node: fx.Node) -> str:
    """A node in words: what it calls and where, or what it stands for."""
    if node.op != "call_function":
        return f"the {'input' if node.op == 'placeholder' else 'tensor'} {node.target}"
    place = node.meta.get("source") or node.meta.get("module")
    return target_name(node) + (f" at {place}" if place else "")


def arguments(node: fx.Node) -> dict[str, Argument]:
    """The arguments of a call of an operator by name, defaults filled in, in the order of its schema."""
    schema = node.target._schema  # type: ignore[union-attr]
    found = {formal.name: formal.default_value for formal in schema.arguments}
    found.update({formal.name: value for formal, value in zip(schema.arguments, node.args, strict=False)})
    found.update(node.kwargs)
    return found


def within(module: str, path: str) -> bool:
    """Whether a module is the one at `path` or lies in it."""
    return module == path or module.startswith(path + ".")


def is_mutable(node: fx.Node) -> bool:
    """Whether the schema says that the node writes into an argument (it is silent about batch norm's statistics)."""
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target._schema.is_mutable)


def writes_statistics(node: fx.Node) -> bool:
    """Whether the node is a norm that takes the statistics at hand into its running ones, of which its schema is
    silent."""
    told = _STATISTICS.get(short_name(node))
    given = {} if told is None else arguments(node)
    return told is not None and bool(given[told]) and isinstance(given["running_mean"], fx.Node)


def is_random(node: fx.Node) -> bool:
    """Whether the node draws random numbers."""
    return (
        isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
    ) or target_name(node) in ("aten::dropout", "aten::feature_dropout", "aten::alpha_dropout")


def is_keyed(node: fx.Node) -> bool:
    """Whether a run draws the node's random numbers by their keys, alike in every piece where it has no rows."""
    return str(node.target) in KEYED and arguments(node).get("generator") is None


def drop_dead(graph: fx.Graph) -> None:
    """Erase calls nobody reads, except writes, running statistics among them, and random draws (which advance the
    generator)."""
    for node in reversed(list(graph.nodes)):
        if node.op not in ("call_function", "get_attr") or node.users:
            continue
        if not (is_mutable(node) or is_random(node) or writes_statistics(node)):
            graph.erase_node(node)


class _Copier:
    """Copies nodes into one new graph, inlining regions."""

    def __init__(self, raw: Raw, own: OwnTensors):
        self.graph = fx.Graph()
        self.state: dict[str, torch.Tensor] = {}
        self.attributes: set[str] = set()  # tensors of the model that are neither parameters nor buffers
        self._raw = raw
        self._own = own
        self._trained: set[fx.Node] = set()
        self._read: dict[str, fx.Node] = {}

    def copy(
        self, module: fx.GraphModule, known: dict[fx.Node, fx.Node], around: fx.Node | None = None
    ) -> list[fx.Node]:
        """Copy the nodes of `module`; the copies of its results. `around` is the region's node when it is one."""
        places = iter(self._raw.input_names)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                if node not in known:
                    known[node] = self.graph.placeholder(next(places))
            elif node.op == "get_attr":
                if any(not _is_region(user) or node is not _region(user) for user in node.users):
                    known[node] = self._attribute(module, str(node.target))
            elif node.op == "output":
                return [known[result] for result in node.all_input_nodes] if around is None else _results(node, known)
            elif _is_region(node):
                self._inline(module, node, known)
            elif not target_name(node).endswith(_DROPPED) and not _raised(node):
                self._call(node, known, around)
        raise CaptureError("the exported graph has no output; report this as a bug of placer")

    def _call(self, node: fx.Node, known: dict[fx.Node, fx.Node], around: fx.Node | None) -> None:
        if node.op != "call_function":
            raise CaptureError(f"the exported graph holds {node.op} {node.target}; report this as a bug of placer")
        first = node.args[0] if node.args else None
        if (
            target_name(node) == "builtin::getitem"
            and isinstance(first, fx.Node)
            and isinstance(known.get(first), list)
        ):
            results = known[first]
            known[node] = results[node.args[1]]  # type: ignore[index]
            return
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise CaptureError(
                f"forward uses {node.target} at {_source(node)}, which placer cannot cut; "
                "write it with plain tensor operations"
            )
        dims = explicit.squeezed_dims(node)
        if dims == ():
            known[node] = known[first]  # type: ignore[index]
            return
        value = explicit.filled_diagonal(node)
        if value is not None:
            whole = known[first]  # type: ignore[index]
            part = self._beside(node, around, torch.ops.aten.diagonal.default, (whole,))
            self._beside(node, around, torch.ops.aten.fill_.Scalar, (part, value))
            known[node] = whole
            return
        made = self._made(node, known, dims, around)
        made.meta.update(_places_of(node, around))
        _require_dense(made)
        if any(argument in self._trained for argument in made.all_input_nodes):
            self._trained.add(made)
        known[node] = made

    def _made(
        self, node: fx.Node, known: dict[fx.Node, fx.Node], dims: tuple[int, ...] | None, around: fx.Node | None
    ) -> fx.Node:
        """The call of a node, told what it is to take from sizes and memory."""
        given = fx.map_arg(node.args, known.__getitem__)
        if dims:
            return self.graph.call_function(explicit.squeeze_of(node), (given[0], list(dims)))
        times = explicit.repeats(node)
        if times is not None:
            return self.graph.call_function(torch.ops.aten.repeat.default, (given[0], times))
        sized = explicit.sized(node)
        if sized is not None:
            return self.graph.call_function(sized[0], (given[0], sized[1]))
        normed = explicit.squared_norm(node)
        if normed is not None:  # as a loss, which autocast casts as it does a norm
            zeros = self._beside(node, around, torch.ops.aten.zeros_like.default, (known[normed],))
            return self.graph.call_function(torch.ops.aten.mse_loss.default, (known[normed], zeros, 2))
        along = explicit.gathered_dim(node)
        if along is not None:
            return self.graph.call_function(torch.ops.aten.gather.default, (given[0], along, given[1]))
        again = explicit.rejoined(node)
        if again is not None:
            whole, dim = again
            flat = self._beside(node, around, torch.ops.aten.flatten.using_ints, (known[whole], dim, dim + 1))
            in_order = {"memory_format": torch.contiguous_format}
            return self.graph.call_function(
                torch.ops.aten.clone.default, (flat,), cast("dict[str, Argument]", in_order)
            )
        if explicit.must_lie_in_order(node, _source(node)):
            laid = self._beside(node, around, torch.ops.aten.contiguous.default, given[:1])
            given = (laid, *given[1:])
        named = fx.map_arg(explicit.keywords(node), known.__getitem__)
        return self.graph.create_node("call_function", node.target, given, named)

    def _beside(
        self, node: fx.Node, around: fx.Node | None, target: torch._ops.OpOverload, given: tuple[Argument, ...]
    ) -> fx.Node:
        """A call that the graph gets for `node`, which has none of its own."""
        made = self.graph.call_function(target, given)
        made.meta.update(_places_of(node, around))
        return made

    def _attribute(self, module: fx.GraphModule, target: str) -> fx.Node:
        value = _attribute(module, target)
        if not isinstance(value, torch.Tensor):
            what = "draws from" if isinstance(value, torch.Generator) else "keeps"
            raise UncapturableError(
                f"forward {what} a {type(value).__name__} ({target}), which an export cannot hold; do without it"
            )
        if self._raw.wrapper.kept.was_moved(value):
            raise MixedDevicesError(f"forward moves {target}, which is no part of the model, to where its inputs lie")
        self._raw.wrapper.kept.require_unread(value)
        held = _attribute(self._raw.wrapper, target)
        name = self._own.name(held, value) or self._constant(value)
        value = self._own.by_name.get(name, value)
        kept = isinstance(held, torch.Tensor) or self._raw.wrapper.kept.holds(value)
        if kept and name not in self._own.by_name:
            self.attributes.add(name)
        self.state.setdefault(name, value)
        if name in self._read:
            return self._read[name]
        made = self._read[name] = self.graph.create_node("get_attr", name)
        if isinstance(value, nn.Parameter):
            self._trained.add(made)
        return made

    def _constant(self, value: torch.Tensor) -> str:
        """Constants made in forward have no name of their own; equal ones share one."""
        for name, known in self.state.items():
            if name.startswith("constant_") and not value.is_meta and not known.is_meta and same_constant(value, known):
                return name
        return f"constant_{sum(name.startswith('constant_') for name in self.state)}"

    def _inline(self, module: fx.GraphModule, node: fx.Node, known: dict[fx.Node, fx.Node]) -> None:
        region = _attribute(module, str(_region(node).target))
        if not isinstance(region, fx.GraphModule):
            raise CaptureError(f"a region at {_source(node)} is no graph; report this as a bug of placer")
        kind = str(node.target)
        if "autocast" in kind and node.args[2]:
            where = next(filter(None, map(_source, region.graph.nodes)), "a line that is not known")
            raise UncapturableError(
                f"forward enables torch.autocast around {where}; leave it out and set the run's precision instead "
                "(--precision bfloat16-autocast)"
            )
        inputs = [argument for argument in node.args if isinstance(argument, fx.Node) and argument is not _region(node)]
        quiet = "set_grad_enabled" in kind and not node.args[0]
        entering = [self._detached(known[argument], node) if quiet else known[argument] for argument in inputs]
        places = [inner for inner in region.graph.nodes if inner.op == "placeholder"]
        inside = dict(zip(places, entering, strict=True))
        known[node] = self.copy(region, inside, around=node)  # type: ignore[assignment]
        for weight in (one for one, argument in zip(entering, inputs, strict=True) if one is not known[argument]):
            self._beside_readers(weight, known[node])

    def _beside_readers(self, entered: fx.Node, results: object) -> None:
        """A detached weight once for each reader, where that is: otherwise the first block would hand it on."""
        if entered.args[0].op != "get_attr" or (isinstance(results, list) and entered in results):  # type: ignore[union-attr]
            return
        for reader in list(entered.users):
            with self.graph.inserting_before(reader):
                made = self.graph.call_function(torch.ops.aten.detach.default, entered.args)
            made.meta.update(reader.meta)
            reader.replace_input_with(entered, made)
        self.graph.erase_node(entered)

    def _detached(self, node: fx.Node, region: fx.Node) -> fx.Node:
        """`node` as it enters a region without gradients: where it was made; a weight, where the region is."""
        if node not in self._trained:
            return node
        made = self.graph.call_function(torch.ops.aten.detach.default, (node,))
        module, calls = _module_path(region.meta.get("nn_module_stack")) if node.op == "get_attr" else ("", {})
        source = node.meta.get("source") or _source(region)
        made.meta.update(module=node.meta.get("module", module), source=source, calls=calls)
        return made


def _places_of(node: fx.Node, around: fx.Node | None) -> dict[str, object]:
    """Where a call stands: in which module, in which call of it, whether around the model, on which line."""
    stack = node.meta.get("nn_module_stack") or (around.meta.get("nn_module_stack") if around is not None else None)
    path, calls = _module_path(stack)
    return {
        "module": path,
        "calls": calls,
        "around": isinstance(stack, dict) and len(stack) == 1,  # what `Training` does around the model
        "source": _source(node) or (_source(around) if around is not None else ""),
    }


def _require_dense(node: fx.Node) -> None:
    """Raise UncapturableError for a table whose gradient would be sparse, which nothing here sums, clips or updates."""
    place = _SPARSE_AT.get(target_name(node))
    if place is None:
        return
    asked = node.args[place] if len(node.args) > place else node.kwargs.get("sparse", False)
    if asked:
        where = node.meta["module"] or node.meta["source"]
        raise UncapturableError(
            f"{where} wants sparse gradients (sparse=True), which placer does not sum over devices; make it with "
            "sparse=False: SGD gives the same weights, and AdamW of torch takes no sparse gradients"
        )


def _raised(node: fx.Node) -> bool:
    """Whether the call raised, which forward caught: nothing was made of it."""
    results = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else ()
    return bool(results) and node.meta.get("val") is None and not node.users


def _is_region(node: fx.Node) -> bool:
    return node.op == "call_function" and str(node.target) in ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def _region(node: fx.Node) -> fx.Node:
    return next(
        argument
        for argument in node.args
        if isinstance(argument, fx.Node) and argument.op == "get_attr" and str(argument.target).startswith("submod")
    )


def _results(node: fx.Node, known: dict[fx.Node, fx.Node]) -> list[fx.Node]:
    given = node.args[0]
    return [known[result] for result in (given if isinstance(given, (tuple, list)) else (given,))]  # type: ignore[index]


def _attribute(module: nn.Module, target: str) -> object:
    """What a dotted name stands for in `module`, None where it has none (constants are the exported module's own)."""
    found: object = module
    for part in target.split("."):
        found = getattr(found, part, None)
    return found


def _module_path(stack: object) -> tuple[str, dict[str, str]]:
    """The innermost module's path, and for each module around that is called again, which call this is."""
    if not isinstance(stack, dict) or not stack:
        return "", {}
    calls: dict[str, str] = {}
    path = ""
    for key, (found, _) in stack.items():
        path = _FIRST.sub("", str(found)).removeprefix("model").removeprefix(".")
        call = re.search(r"@\d+$", str(key))
        if call:
            calls[path] = call.group(0)
    return path, calls


def _source(node: fx.Node) -> str:
    frames = _FRAME.findall(str(node.meta.get("stack_trace") or ""))
    if not frames:
        return ""
    # What calls a module, of torch and in place of a part's or an encoder's forward, is no line of the model.
    callers = ("export/opaque.py", "export/unseen.py")
    own = [frame for frame in frames if "/torch/nn/" not in frame[0] and not frame[0].endswith(callers)]
    file, line = (own or frames)[-1]
    if file.endswith("tracer/export/exporting.py"):  # torch keeps the lines of `forward` alone, and a loss has none
        return LOSS
    return f"{'/'.join(file.split('/')[-2:])}:{line}"
