"""How the tests of execution cut the ops of the example models, class by class (`split_plans.Picker`)."""

from __future__ import annotations

from examples.parity.named_splits import Picker
from placer.graph import BlockClass
from placer.spmd.propagation import Wishes

HEAD = {"linear_1": "n", "cross_entropy_loss_1": "classes"}


def megatron_llama(kind: BlockClass) -> Wishes | None:
    """Columns then rows, grouped heads, vocabulary-split embedding and loss."""
    columns = ("linear_1", "linear_2", "linear_3", "linear_5", "linear_6")
    if _has(kind, "linear_7"):
        return {**dict.fromkeys(columns, "n"), "linear_4": "k", "linear_7": "k"}
    return _ends(kind)


def megatron_gpt2(kind: BlockClass) -> Wishes | None:
    """The same of GPT-2, whose queries, keys and values are one product: a rank has its heads of each of the three."""
    if _has(kind, "addmm_4"):
        return {"addmm_2": "k", "addmm_3": "n", "addmm_4": "k", **_THREE_PARTS}
    return _ends(kind)


def exchanged_gpt2(kind: BlockClass) -> Wishes | None:
    """GPT-2 with plain columns for queries, keys and values, which are no heads: they are put together first."""
    if _has(kind, "addmm_4"):
        return {"addmm_1": "n", "scaled_dot_product_attention_1": "heads", "addmm_2": "k"}
    return _ends(kind)


def columns_and_rows(kind: BlockClass) -> Wishes | None:
    """A feed-forward layer by columns, then rows."""
    return {"linear_1": "n", "linear_2": "k"} if _has(kind, "linear_2") else _ends(kind)


def rows_and_columns(kind: BlockClass) -> Wishes | None:
    """The other way round: sums of partial products in the middle."""
    if _has(kind, "linear_2"):
        return {"linear_1": "k", "linear_2": "n"}
    return {"embedding_1": "hidden"} if _has(kind, "embedding_1") else None


def rows_of_the_sequence(inner: Picker) -> Picker:
    """Norms, dropout and activations by rows of the sequence, products as `inner` says."""

    def pick(kind: BlockClass) -> Wishes | None:
        names = ("layer_norm", "dropout", "gelu") if kind.parameters else ()
        rows = {op.name: "dim 1" for op in kind.ops if op.name.rpartition("_")[0] in names}
        wishes = inner(kind)
        return None if wishes is None else {**rows, **wishes}

    return pick


def nothing(kind: BlockClass) -> Wishes | None:
    """No wish."""
    return {} if kind.parameters else None


def convolutions(choice: str) -> Picker:
    """Every convolution as `choice`, the rest as it comes."""

    def pick(kind: BlockClass) -> Wishes | None:
        return {op.name: choice for op in kind.ops if op.name.startswith("conv2d")}

    return pick


def norms_in_turns(kind: BlockClass) -> Wishes | None:
    """Norms by channels, then whole, then by channels again, as those of one module that is called thrice may be."""
    norms = [op.name for op in kind.ops if "_norm" in op.target]
    return {name: ("channels", "whole")[place % 2] for place, name in enumerate(norms)}


def windows(kind: BlockClass) -> Wishes | None:
    """Every op that slides over the rows of images, or shifts them, by rows."""
    rows = {"conv2d": "space 0", "slice": "dim 2", "pad": "dim 2"}
    return {op.name: rows[name] for op in kind.ops if (name := op.name.rpartition("_")[0]) in rows}


def experts_of_all_rows(kind: BlockClass) -> Wishes | None:
    """Each rank has some experts; all rows are on every rank, and results are summed."""
    if not _has(kind, "grouped_mm_fallback_1"):
        return None
    return {**dict.fromkeys(("grouped_mm_fallback_1", "grouped_mm_fallback_2"), "experts"), **_EXPERT_WEIGHTS}


def experts_sent_to(kind: BlockClass) -> Wishes | None:
    """Each rank has some experts and some of the rows, which go to their experts' ranks and come back."""
    if not _has(kind, "grouped_mm_fallback_1"):
        return None
    names = [op.name for op in kind.ops]
    start, end = names.index("reshape_3"), names.index("sort_1")
    rows = dict.fromkeys(names[start:end], "dim 0") | {"linear_5": "lead 0"}
    own = dict.fromkeys(names[end + 1 :], "dim 0, own order")
    back = names.index("index_3") + 1
    after = dict.fromkeys(names[back : names.index("reshape_6")], "dim 0") | dict.fromkeys(names[-2:], "whole")
    return {**own, **rows, **_OWN_ORDER, **_EXPERT_WEIGHTS, **after}


_THREE_PARTS = {"addmm_1": "n in 3 parts", "view_2": "dim 1 in 3 parts", "split_1": "dim 2 of 3 parts"}
_EXPERT_WEIGHTS = {"transpose_5": "dim 0", "transpose_6": "dim 0"}
_OWN_ORDER = {
    "sort_1": "own order",
    "index_1": "to own order",
    "index_2": "to own order",
    "histc_1": "own rows",
    "cumsum_1": "own",
    "grouped_mm_fallback_1": "own rows, experts apart",
    "grouped_mm_fallback_2": "own rows, experts apart",
    "index_put__1": "own order",
    "index_3": "from own order",
}


def _ends(kind: BlockClass) -> Wishes | None:
    if _has(kind, "cross_entropy_loss_1"):
        return HEAD
    return {"embedding_1": "vocabulary"} if _has(kind, "embedding_1") else None


def _has(kind: BlockClass, name: str) -> bool:
    return any(op.name == name for op in kind.ops)


def case_id(value: object) -> str:
    """The name of a parameter in a test's name, the same in every process."""
    if isinstance(value, tuple):
        return "-".join(case_id(part) for part in value)
    return value.__name__ if callable(value) and hasattr(value, "__name__") else str(value)


def loss_by(name: str) -> Picker:
    """The loss alone, along one of its dims."""

    def pick(kind: BlockClass) -> Wishes | None:
        return {"cross_entropy_loss_1": name} if _has(kind, "cross_entropy_loss_1") else None

    return pick
