"""What rules say of ops that are alike is kept: not beyond the rules that said it, nor for numbers of other types."""

from __future__ import annotations

from placer.graph import Affine, BlockClass, Op, Tensor
from placer.rules import Call, Work, gradients, named, op_choices, register, register_split, unregister
from placer.rules.graph_calls import call_of
from placer.rules.splits import SplitRule, unregister_split
from placer.spmd.local_ops import local_op

TARGET = "keptlib::mix"
VALUE = Tensor(shape=(Affine(per_row=1), Affine(8)), dtype="float32", requires_grad=True)


def block(arguments: str = "t0", name: str = "mix") -> BlockClass:
    """A class of one op, made anew: nothing is known of it by what it is."""
    op = Op(name=name, target="keptlib.mix.default", kind="matmul", inputs=("i0",), arguments=arguments,
            outputs=(VALUE,), forward_flops=Affine(per_row=128))  # fmt: skip
    return BlockClass(inputs=(VALUE,), ops=(op,), outputs=("o0.0",))


def with_rule(rule: SplitRule) -> list[str]:
    register_split(TARGET, rule)
    try:
        own = block()
        return [choice.name for choice in op_choices(own, own.ops[0])]
    finally:
        unregister_split(TARGET)


def test_choices_are_those_of_the_rule_that_is_registered() -> None:
    first, other = named("row width -> row width"), named("row width! -> row width!")
    assert [with_rule(rule) for rule in (first, other, first)] == [
        ["whole", "deferred", "row", "width"], ["whole", "deferred", "row"], ["whole", "deferred", "row", "width"],
    ]  # fmt: skip


def times(factor: int) -> Affine:
    """FLOPs of a rank by a rule that says so many times the products'."""

    def mix(call: Call) -> Work:
        x = call.tensor(0)
        return gradients(x, x, batch=factor, m=x.shape[0], n=x.shape[1], k=1)

    register(TARGET, mix, kind="matmul")
    register_split(TARGET, named("row width -> row width"))
    try:
        own = block(name=f"mix {factor}")
        choice = next(one for one in op_choices(own, own.ops[0]) if one.name == "width")
        made = local_op(own, own.ops[0], choice, 2)
        assert (made.name, made.inputs) == (f"mix {factor}", ("i0",))
        return made.forward_flops
    finally:
        unregister(TARGET)
        unregister_split(TARGET)


def test_work_of_a_rank_is_by_the_rule_that_is_registered() -> None:
    assert [times(factor) for factor in (1, 3, 1)] == [Affine(per_row=8), Affine(per_row=24), Affine(per_row=8)]


def test_calls_of_equal_numbers_of_other_types_are_apart() -> None:
    found = []
    for text in ("t0, 1", "t0, True", "t0, 1.0", "t0, 1"):
        own = block(text)
        found.append(call_of(own, own.ops[0], 4).arguments[1])
    assert [type(one) for one in found] == [int, bool, float, int]
