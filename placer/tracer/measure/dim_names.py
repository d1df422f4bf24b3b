"""Names of dims, where certain: of inputs by rank and name, of results by operator, through views and pointwise calls.

`batch` is exactly the rows; others are `sequence`, `hidden`, `vocab`, `heads`, `channels`, `height` and `width`.
None: not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import fx

from placer.graph import Affine
from placer.tracer.export.cleaning import short_name

Names = tuple[str | None, ...]
Shape = tuple[Affine, ...]

_ROWS = Affine(0, 1)
_IMAGE: Names = ("batch", "channels", "height", "width")
_SPACE: dict[int, Names] = {3: ("batch", "channels", "sequence"), 4: _IMAGE}
_CONVOLUTIONS = ("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "convolution")


def dim_names(graph: fx.Graph, shapes: Mapping[fx.Node, tuple[Shape, ...]]) -> dict[fx.Node, tuple[Names, ...]]:
    """The names of the dims of each result of each node; `shapes` are those of the results."""
    found: dict[fx.Node, tuple[Names, ...]] = {}
    vocabulary = _vocabulary(graph, shapes)
    for node in graph.nodes:
        if node in shapes:
            found[node] = tuple(_checked(_names(node, shape, found, shapes), shape) for shape in shapes[node])
        if short_name(node) == "linear" and shapes[node][0][-1] == vocabulary:
            found[node] = ((*found[node][0][:-1], "vocab"),)
    return found


def _vocabulary(graph: fx.Graph, shapes: Mapping[fx.Node, tuple[Shape, ...]]) -> Affine | None:
    """Rows of the largest table; None where the model has none."""
    tables = [node.args[0] for node in graph.nodes if short_name(node) == "embedding"]
    return max((shapes[table][0][0] for table in tables if isinstance(table, fx.Node)), default=None)


def _checked(names: Names, shape: Shape) -> Names:
    """`batch` stands where the size is exactly the rows, and nowhere else; a dim of size 1 has no name."""
    return tuple(
        "batch" if size == _ROWS else None if name == "batch" or size == Affine(1) else name
        for name, size in zip(names, shape, strict=True)
    )


def _names(
    node: fx.Node, shape: Shape, found: Mapping[fx.Node, tuple[Names, ...]],
    shapes: Mapping[fx.Node, tuple[Shape, ...]],
) -> Names:  # fmt: skip
    unknown: Names = (None,) * len(shape)
    if node.op == "placeholder":
        return _of_input(str(node.target), len(shape)) or unknown
    name = short_name(node)
    if name in _CONVOLUTIONS:
        return _SPACE.get(len(shape), unknown)
    given = [(found[one][0], shapes[one][0]) for one in node.all_input_nodes if found.get(one)]
    if not name or not given or name in _NAMELESS:
        return unknown
    if name in _RULES:
        return _RULES[name](node, given, shape) or unknown
    return next((names for names, size in given if size == shape and any(names)), unknown)


def _of_input(name: str, rank: int) -> Names | None:
    if name.endswith(("pixel_values", "image", "images")) and rank == 4:
        return _IMAGE
    if name.endswith(("input_ids", "attention_mask", "labels")) and rank == 2:
        return ("batch", "sequence")
    return ("batch", "sequence", "hidden") if name.endswith("inputs_embeds") and rank == 3 else None


_Given = list[tuple[Names, Shape]]


def _linear(node: fx.Node, given: _Given, shape: Shape) -> Names:
    return (*given[0][0][:-1], "hidden")


def _embedding(node: fx.Node, given: _Given, shape: Shape) -> Names:
    return (*given[-1][0], "hidden")


def _attention(node: fx.Node, given: _Given, shape: Shape) -> Names | None:
    return ("batch", "heads", "sequence", None) if len(shape) == 4 else None


def _transpose(node: fx.Node, given: _Given, shape: Shape) -> Names | None:
    names = list(given[0][0])
    first, second = node.args[1:3]
    if not isinstance(first, int) or not isinstance(second, int):
        return None
    names[first], names[second] = names[second], names[first]
    return tuple(names)


def _permute(node: fx.Node, given: _Given, shape: Shape) -> Names | None:
    order = node.args[1]
    if not isinstance(order, (list, tuple)) or not all(isinstance(at, int) for at in order):
        return None
    return tuple(given[0][0][at] for at in order if isinstance(at, int))


def _view(node: fx.Node, given: _Given, shape: Shape) -> Names:
    """Dims in front that keep their sizes keep their names; a hidden dim divided in two is heads first."""
    names, before = given[0]
    kept = 0
    while kept < min(len(shape), len(before)) and shape[kept] == before[kept]:
        kept += 1
    rest: list[str | None] = [None] * (len(shape) - kept)
    if len(rest) == 2 and kept == len(before) - 1 and names[kept] == "hidden":
        rest[0] = "heads"
    return (*names[:kept], *rest)


_RULES: dict[str, Callable[[fx.Node, _Given, Shape], Names | None]] = {
    "linear": _linear,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
    "transpose": _transpose,
    "permute": _permute,
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), _view),
}
# A square result may have an operand's shape without its meaning.
_NAMELESS = ("matmul", "bmm", "mm", "addmm", "baddbmm", "einsum", "t", "mT", "swapaxes", "movedim")
