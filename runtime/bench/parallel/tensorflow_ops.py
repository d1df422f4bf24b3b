"""Graph: a model as torch exports it, carried out by TensorFlow's ops.

Images lie as (rows, height, width, channels), which TensorFlow's convolutions on CPUs want: values that come from
images through the ops of `IMAGES` lie so, all others as torch lays them. Weights are turned where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import fx, nn

from placer.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Nodes in their order, and which parameter each placeholder is."""

    nodes: tuple[fx.Node, ...]
    parameters: Mapping[str, str]

    @classmethod
    def of(cls, model: nn.Module, rows: int) -> Graph:
        """The graph of so many rows. Raises UsageError for an op that is not in the table."""
        images = torch.zeros(rows, 3, 32, 32)
        program = torch.export.export(model, (images, torch.zeros(rows, dtype=torch.int64)), strict=False)
        nodes = tuple(program.graph.nodes)
        unknown = {_name(node) for node in nodes if node.op == "call_function"} - set(OPS) - set(IMAGES)
        if unknown:
            raise UsageError(f"TensorFlow is not taught {', '.join(sorted(unknown))}; add them to tensorflow_ops.py")
        return cls(nodes=nodes, parameters=dict(program.graph_signature.inputs_to_parameters))

    def run(self, tf: Any, variables: Mapping[str, Any], images: Any, labels: Any) -> Any:
        """The loss. tf: the library."""
        given = {"images": tf.transpose(images, (0, 2, 3, 1)), "labels": labels}
        values, lying = dict[str, Any](), {"images"}
        for node in self.nodes:
            if node.op == "placeholder":
                values[node.name] = given[node.name] if node.name in given else variables[self.parameters[node.name]]
            elif node.op == "call_function":
                values[node.name] = _carried_out(tf, node, values, lying)
            else:
                return values[node.args[0][0].name]  # type: ignore[union-attr, index]  # the one output
        raise UsageError("the exported graph has no output")


def _carried_out(tf: Any, node: fx.Node, values: Mapping[str, Any], lying: set[str]) -> Any:
    name = _name(node)
    if name in IMAGES and all(one.name in lying for one in _tensors(node)):
        lying.add(node.name)
        return IMAGES[name](tf, *fx.map_arg(node.args, lambda one: values[one.name]))

    def as_torch(one: fx.Node) -> Any:
        return tf.transpose(values[one.name], (0, 3, 1, 2)) if one.name in lying else values[one.name]

    return OPS[name](tf, *fx.map_arg(node.args, as_torch))


def _tensors(node: fx.Node) -> list[fx.Node]:
    """What is computed on, without the weights."""
    return [one for one in node.all_input_nodes if not one.name.startswith("p_")]


def _name(node: fx.Node) -> str:
    return str(node.target).split(".")[1].removesuffix("_")


def _conv2d(tf: Any, x: Any, weight: Any, bias: Any = None, stride: Any = (1, 1), padding: Any = (0, 0),
            dilation: Any = (1, 1), groups: int = 1) -> Any:  # fmt: skip
    high, wide = _pair(padding)
    padded = tf.pad(x, ((0, 0), (high, high), (wide, wide), (0, 0))) if high or wide else x
    each = (1, *_pair(stride), 1)
    if groups == 1:
        kernel = tf.transpose(weight, (2, 3, 1, 0))
        made = tf.nn.conv2d(padded, kernel, each, "VALID", dilations=(1, *_pair(dilation), 1))
    else:  # one channel each
        kernel = tf.transpose(weight, (2, 3, 0, 1))
        made = tf.nn.depthwise_conv2d(padded, kernel, each, "VALID", dilations=_pair(dilation))
    return made if bias is None else made + bias


def _max_pool2d(tf: Any, x: Any, size: Any, stride: Any = None, padding: Any = (0, 0)) -> Any:
    high, wide = _pair(padding)
    padded = tf.pad(x, ((0, 0), (high, high), (wide, wide), (0, 0)), constant_values=x.dtype.min)
    return tf.nn.max_pool2d(padded, _pair(size), _pair(stride or size), "VALID")


def _group_norm(tf: Any, x: Any, groups: int, weight: Any, bias: Any, epsilon: float = 1e-5, _: bool = True) -> Any:
    rows, high, wide, channels = x.shape
    grouped = tf.reshape(x, (rows, high, wide, groups, channels // groups))
    mean, variance = tf.nn.moments(grouped, (1, 2, 4), keepdims=True)
    return tf.reshape((grouped - mean) * tf.math.rsqrt(variance + epsilon), x.shape) * weight + bias


def _layer_norm(tf: Any, x: Any, _: Any, weight: Any, bias: Any, epsilon: float = 1e-5, __: bool = True) -> Any:
    mean, variance = tf.nn.moments(x, (-1,), keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + epsilon) * weight + bias


def _attention(tf: Any, q: Any, k: Any, v: Any, mask: Any = None, *_: Any) -> Any:
    scores = tf.matmul(q, k, transpose_b=True) / sqrt(q.shape[-1])
    if mask is not None:
        scores = tf.where(mask, scores, scores.dtype.min)
    return tf.matmul(tf.nn.softmax(scores), v)


def _linear(tf: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    made = tf.tensordot(x, weight, ((-1,), (1,)))
    return made if bias is None else made + bias


def _flatten(tf: Any, x: Any, first: int = 0, last: int = -1) -> Any:
    end = last % len(x.shape)
    return tf.reshape(x, (*x.shape[:first], -1, *x.shape[end + 1 :]))


def _transpose(tf: Any, x: Any, one: int, other: int) -> Any:
    order = list(range(len(x.shape)))
    order[one], order[other] = order[other], order[one]
    return tf.transpose(x, order)


def _expand(tf: Any, x: Any, sizes: Sequence[int]) -> Any:
    own = (1,) * (len(sizes) - len(x.shape)) + tuple(x.shape)
    return tf.broadcast_to(x, [have if want == -1 else want for want, have in zip(sizes, own, strict=True)])


def _cross_entropy(tf: Any, scores: Any, labels: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))


def _pair(found: Any) -> tuple[int, int]:
    return (found, found) if isinstance(found, int) else (found[0], found[-1])


Op = Callable[..., Any]
#: Ops that take images as TensorFlow lays them and give images; added together they lie alike.
IMAGES: dict[str, Op] = {
    "conv2d": _conv2d,
    "max_pool2d": _max_pool2d,
    "adaptive_avg_pool2d": lambda tf, x, size: tf.reduce_mean(x, (1, 2), keepdims=True),
    "group_norm": _group_norm,
    "relu": lambda tf, x: tf.nn.relu(x),
    "hardtanh": lambda tf, x, low, high: tf.clip_by_value(x, low, high),
    "add": lambda tf, x, y: x + y,
}
OPS: dict[str, Op] = {
    "add": lambda tf, x, y: x + y,
    "arange": lambda tf, count: tf.range(count),
    "cat": lambda tf, parts, dim: tf.concat(parts, dim),
    "cross_entropy_loss": _cross_entropy,
    "dropout": lambda tf, x, *_: x,  # with probability 0
    "expand": _expand,
    "flatten": _flatten,
    "ge": lambda tf, x, y: x >= y,
    "gelu": lambda tf, x: tf.nn.gelu(x, approximate=False),
    "layer_norm": _layer_norm,
    "linear": _linear,
    "relu": lambda tf, x: tf.nn.relu(x),
    "reshape": lambda tf, x, sizes: tf.reshape(x, sizes),
    "scaled_dot_product_attention": _attention,
    "select": lambda tf, x, dim, index: tf.gather(x, index % x.shape[dim], axis=dim),
    "transpose": _transpose,
    "unsqueeze": lambda tf, x, dim: tf.expand_dims(x, dim),
    "view": lambda tf, x, sizes: tf.reshape(x, sizes),
}
