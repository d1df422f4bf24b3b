"""The operator rules against closed forms, and how a person adds one."""

from __future__ import annotations

import pytest

from placer.errors import UsageError
from placer.graph import Affine, BlockClass, Op, Tensor
from placer.rules import Argument, Call, Value, Work, gradients, kind_of, register, rule_for, unregister
from placer.rules.graph_calls import call_of
from placer.spmd.local_ops import SampledCall


def work(target: str, *arguments: Argument, outputs: tuple[Value, ...] = ()) -> Work:
    rule = rule_for(target)
    assert rule is not None
    return rule(Call(target=target, arguments=arguments, outputs=outputs))


def grad(*shape: int) -> Value:
    return Value(shape, requires_grad=True)


def fixed(*shape: int) -> Value:
    return Value(shape)


def test_a_linear_layer_costs_twice_its_weights_per_token_and_twice_that_backward() -> None:
    found = work("aten::linear", grad(3, 5, 8), grad(16, 8))
    assert found.forward_flops == 2 * 15 * 8 * 16
    assert found.backward_flops == 2 * found.forward_flops


def test_only_gradients_that_somebody_needs_are_counted() -> None:
    assert work("aten::linear", fixed(4, 8), grad(16, 8)).backward_flops == 2 * 4 * 8 * 16
    assert work("aten::linear", fixed(4, 8), fixed(16, 8)).backward_flops == 0


def test_a_matrix_product_broadcasts_its_leading_dims() -> None:
    assert work("aten::matmul", grad(2, 1, 5, 8), grad(3, 8, 7)).forward_flops == 2 * (2 * 3) * 5 * 7 * 8
    assert work("aten::matmul", grad(2, 3, 5, 8), grad(8, 7)).forward_flops == 2 * (2 * 3 * 5) * 7 * 8


def test_einsum_is_a_product_over_its_distinct_letters() -> None:
    found = work("aten::einsum", "bhqd,bhkd->bhqk", (grad(2, 3, 5, 8), grad(2, 3, 7, 8)))
    assert found.forward_flops == 2 * (2 * 3) * 5 * 7 * 8


def test_einsum_of_three_operands_is_two_products_from_the_left() -> None:
    found = work("aten::einsum", "eti,eih,te->th", (grad(4, 5, 6), grad(4, 6, 3), fixed(5, 4)))
    assert found.forward_flops == 2 * 4 * 5 * 3 * 6 + 2 * (5 * 3) * 4
    assert found.backward_flops == 2 * (2 * 4 * 5 * 3 * 6) + 2 * (5 * 3) * 4  # the share has no gradient


def test_einsum_may_leave_out_its_result_and_name_dims_by_dots() -> None:
    for equation in ("ab,bc", "ab,bc->ac", "...b,bc", "...b,bc->...c"):
        assert work("aten::einsum", equation, (grad(5, 8), grad(8, 7))).forward_flops == 2 * 5 * 8 * 7


def test_a_grouped_convolution_costs_its_forward_for_each_gradient() -> None:
    # Depthwise 7 x 7: 32 channels, one input channel each.
    found = work(
        "aten::conv2d",
        grad(2, 32, 14, 14),
        grad(32, 1, 7, 7),
        None,
        (1, 1),
        (3, 3),
        (1, 1),
        32,
        outputs=(Value((2, 32, 14, 14)),),
    )
    assert found.forward_flops == 2 * (2 * 14 * 14) * 32 * 49
    assert found.backward_flops == 2 * found.forward_flops


def test_a_transposed_convolution_visits_every_input_position() -> None:
    found = work("aten::conv_transpose2d", grad(2, 8, 5, 5), grad(8, 4, 2, 2), outputs=(Value((2, 4, 10, 10)),))
    assert found.forward_flops == 2 * (2 * 5 * 5) * 8 * 4 * 4


@pytest.mark.parametrize("kernel", ["_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"])
def test_fused_attention_computes_the_scores_once_more_in_backward(kernel: str) -> None:
    q, k, v = grad(2, 4, 16, 8), grad(2, 4, 32, 8), grad(2, 4, 32, 8)
    product = 2 * (2 * 4) * 16 * 32 * 8
    assert work(f"aten::{kernel}", q, k, v).forward_flops == 2 * product
    assert work(f"aten::{kernel}", q, k, v).backward_flops == 5 * product
    assert work("aten::scaled_dot_product_attention", q, k, v).backward_flops == 4 * product


@pytest.mark.parametrize("tokens", [64, 63])
def test_grouped_expert_products_cost_tokens_times_the_weights_of_one_expert(tokens: int) -> None:
    # `tokens` is already tokens x top-k; 63 does not divide by the 8 experts.
    found = work("transformers::grouped_mm_fallback", grad(tokens, 16), grad(8, 16, 24), fixed(8))
    assert found.forward_flops == 2 * tokens * 16 * 24
    assert found.backward_flops == 2 * found.forward_flops


def test_a_custom_operator_gets_a_rule_in_a_few_lines() -> None:
    def scan(call: Call) -> Work:
        x_BSH, w_HN = call.tensor(0), call.tensor(1)  # noqa: N806
        return gradients(x_BSH, w_HN, batch=1, m=x_BSH.elements // x_BSH.shape[-1], n=w_HN.shape[1], k=w_HN.shape[0])

    register("mylib::scan", scan, kind="matmul")
    try:
        assert work("mylib::scan", grad(2, 3, 4), grad(4, 5)).forward_flops == 2 * 6 * 4 * 5
        assert kind_of("mylib::scan") == "matmul"
        with pytest.raises(UsageError, match="already has a rule"):
            register("mylib::scan", scan)
    finally:
        unregister("mylib::scan")
    assert rule_for("mylib::scan") is None


def test_an_unknown_operator_is_opaque_and_a_foreign_linear_is_not_torchs() -> None:
    assert kind_of("mylib::linear") == "opaque"
    assert rule_for("mylib::linear") is None
    assert kind_of("aten::linear") == "matmul"
    assert kind_of("aten::some_new_operator") == "opaque"
    assert kind_of("aten::some_new_operator", frozenset({"pointwise"})) == "pointwise"


@pytest.mark.parametrize("text", ["-t0", "t0, 2 * t0", "t0, -[t0]"])
def test_a_number_that_a_graph_reckons_from_a_tensor_is_refused(text: str) -> None:
    op = Op(name="add", target="aten.add.Tensor", kind="pointwise", inputs=("i0",), arguments=text)
    kind = BlockClass(inputs=(Tensor(shape=(Affine(0, 1),), dtype="float32"),), parameters=(), ops=(op,), outputs=())
    with pytest.raises(UsageError, match=r"argument 't0', which says nothing|reckons with '\[t0\]'"):
        call_of(kind, op, 3)


def test_the_work_of_a_product_without_columns_is_none() -> None:
    assert work("aten::linear", Value((4, 0), 4), Value((8, 0), 4), outputs=(Value((4, 8), 4),)).forward_flops == 0


def test_shapes_that_no_call_of_an_op_has_are_refused() -> None:
    nothing = Value((4, 8, 0, 0), 4)
    call = Call(target="aten::scaled_dot_product_attention", arguments=(nothing,) * 3, outputs=(nothing,))
    with pytest.raises(UsageError, match=r"shapes \(4, 8, 0, 0\).* cannot be told"):
        _ = SampledCall(rows=4, whole=call, local=call).work


def test_of_a_message_of_100_000_characters_the_beginning_is_told() -> None:
    assert str(UsageError("wrong: " + "x" * 100_000)).startswith("wrong: xxx")
    assert len(str(UsageError("wrong: " + "x" * 100_000))) < 7_000
