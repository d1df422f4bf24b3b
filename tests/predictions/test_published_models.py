"""Models of published runs do what the frameworks that ran them do, beside what their library writes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers

from placer.costs.compute.product_rates import CAUSAL as FLAG
from placer.costs.memory.op_memory import class_memory
from placer.costs.precision import Numerics
from placer.graph import BlockClass, Graph, Op
from placer.io.model_shape import Shape
from placer.plans.settings import RunSettings, Stack
from placer.rules.families.attention import attention as ways
from placer.rules.graph_calls import call_of
from placer.spmd.local_ops import local_op
from placer.tracer.published.causal import CAUSAL
from placer.tracer.published.models import model_graph

SIZES = Shape(
    kind="llama", layers=4, hidden=256, heads=8, key_heads=2, head_size=32, inner=512, vocabulary=1024, sequence=64,
    experts=8, chosen=2, expert_inner=128,
)  # fmt: skip


def of_kind(kind: str) -> Graph:
    return model_graph(replace(SIZES, kind=kind))


def attention(graph: Graph) -> tuple[BlockClass, Op]:
    return next((own, op) for own in graph.classes for op in own.ops if op.kind == "attention")


@pytest.mark.in_turns
@pytest.mark.parametrize("kind", ["moe", "squared"])
def test_attention_is_counted_alike_whoever_wrote_the_model(kind: str) -> None:
    """Llama's is written here: half of its products, a key and a value of two heads for queries of eight, no mask."""
    (_, own), (_, llama) = attention(of_kind(kind)), attention(of_kind("llama"))
    assert own.forward_flops == llama.forward_flops
    assert own.fused_saved_bytes == llama.fused_saved_bytes
    assert len(own.inputs) == 3


TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64, "use_cache": False}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
WRITTEN = [
    (transformers.NemotronForCausalLM, {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}),
    (
        transformers.DeepseekV3ForCausalLM,
        {"num_attention_heads": 4, "num_key_value_heads": 4, "first_k_dense_replace": 2, **LATENT},
    ),
]


@pytest.mark.parametrize(("made", "sizes"), WRITTEN)
def test_the_models_compute_the_same_as_their_library_writes_it(
    made: type[transformers.PreTrainedModel], sizes: dict[str, int]
) -> None:
    torch.manual_seed(0)
    written, counted = (
        made(made.config_class(**TINY, **sizes, attn_implementation=told)).double() for told in ("sdpa", CAUSAL)
    )
    counted.load_state_dict(written.state_dict())
    tokens = torch.randint(0, 64, (2, 32))
    torch.testing.assert_close(counted(tokens).logits, written(tokens).logits, rtol=1e-9, atol=1e-9)


def test_megatron_core_keeps_no_result_of_experts_to_weigh_it() -> None:
    """Two copies of each of 64 tokens, of 256 numbers of 2 bytes, in each layer."""
    graph = of_kind("moe")
    layer = next(own for own in graph.classes if any(op.kind == "attention" for op in own.ops))

    def saved(stack: Stack) -> int:
        settings = RunSettings(precision="bfloat16", stack=stack)
        return class_memory(layer, Numerics.of(graph, settings), settings, "cuda").saved.at(1)

    assert saved("torch") - saved("megatron-core") == 2 * 64 * 256 * 2


def test_a_piece_of_the_queries_computes_what_is_hidden_and_keeps_its_mask() -> None:
    """Half of 64 queries begin behind 32 hidden ones: a mask of 32 times 64 numbers of 2 bytes, and all products. Two
    heads of keys and values become eight, of 32 numbers."""
    own, op = attention(of_kind("llama"))
    query = next(choice for choice in ways(call_of(own, op, 2)) if choice.name == "query")
    local = local_op(own, op, query, 2)
    assert FLAG.match(op.arguments) and not FLAG.match(local.arguments)
    assert local.forward_flops.at(1) == op.forward_flops.at(1) / 2
    assert local.fused_saved_bytes.fixed == 32 * 64 * 2
    ours = op.fused_saved_bytes.per_row * (32 * 8 + 2 * 64 * 2 + 32 * 8) // (64 * 8 + 2 * 64 * 2 + 64 * 8)
    assert local.fused_saved_bytes.per_row == pytest.approx(ours + 2 * 64 * (8 - 2) * 32 * 2, rel=0.01)
    shared = local_op(own, op, query, 2, balanced=True)  # as context parallelism of other stacks has it
    assert FLAG.match(shared.arguments) and shared.forward_flops == local.forward_flops
    assert shared.fused_saved_bytes.fixed == 0
