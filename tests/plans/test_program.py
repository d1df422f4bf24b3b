"""Programs: complete, agreed on by all ranks, free of deadlock under mere rendezvous; planted mistakes are found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import chain_graphs, gpt_graph
from pipeline_plans import chain, pipeline_plan
from placer.graph import Graph
from placer.plans.order import plan_actions
from placer.plans.plan import Plan, ScheduleName, Sharding
from placer.plans.settings import RunSettings
from placer.plans.transfers import transfers
from placer.program.agreement import agreement
from placer.program.buckets import ddp_buckets, gradient_buckets, shard_units
from placer.program.instructions import Collective, Compute, Instruction, Message, OptimizerStep, Program
from placer.program.lowering import lower
from placer.program.ranks import connected_replicas

SKIPS = ((0, 5), (1, 7), (2, 4))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A legal layout of a random chain with skips and tied weights, any schedule."""
    graph = draw(chain_graphs(least=4, most=8))
    name: ScheduleName = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble"]))
    positions = draw(st.integers(1, 4 if name != "interleaved" else 2))
    replicas = draw(st.integers(1, 3))
    shardings: list[Sharding] = ["none", "optimizer"] if replicas > 1 else ["none"]
    if replicas > 1 and name != "zero-bubble" and name != "interleaved":
        shardings += ["gradients", "parameters"]
    rows = [draw(st.integers(1, 3 * replicas)) for _ in range(draw(st.integers(1, 6)))]
    return pipeline_plan(
        graph,
        positions=positions,
        turns=2 if name == "interleaved" else 1,
        replicas=replicas,
        microbatches=rows,
        schedule=name,
        sharding=draw(st.sampled_from(shardings)),
    )


def messages(program: Program) -> list[Message]:
    return [entry for entry in program.instructions if isinstance(entry, Message)]


def collectives(program: Program) -> list[Collective]:
    return [entry for entry in program.instructions if isinstance(entry, Collective)]


@settings(max_examples=10)
@given(plans())
def test_all_ranks_agree_and_none_deadlocks_without_tags_or_buffers(plan: Plan) -> None:
    assert agreement(lower(plan)) == ()


@settings(max_examples=15)
@given(plans())
def test_every_rank_computes_its_position_of_the_schedule_in_order(plan: Plan) -> None:
    schedule = plan_actions(plan)
    for program in lower(plan):
        done = tuple(entry.action for entry in program.instructions if isinstance(entry, Compute))
        assert done == schedule[program.rank // plan.stages[0].replicas]
        assert program.device == plan.ranks[program.rank]
        own = [entry for entry in program.instructions if not isinstance(entry, Message | Collective)]
        assert own[-1] == OptimizerStep(stages=program.stages)


@settings(max_examples=15)
@given(plans())
def test_replicas_compute_all_rows_of_every_microbatch_once(plan: Plan) -> None:
    rows: Counter[tuple[int, int]] = Counter()
    for program in lower(plan):
        for entry in program.instructions:
            if isinstance(entry, Compute) and entry.action.kind == "F":
                rows[entry.action.stage, entry.action.microbatch] += entry.rows
    wanted = {(s, m): rows for s in range(len(plan.stages)) for m, rows in enumerate(plan.microbatches)}
    assert rows == Counter(wanted)


@settings(max_examples=15)
@given(plans())
def test_what_a_stage_reads_has_been_received_before_it_runs(plan: Plan) -> None:
    home = {block: s for s, stage in enumerate(plan.stages) for block in range(stage.first, stage.last)}
    for program in lower(plan):
        here: set[tuple[str, int]] = set()
        for entry in program.instructions:
            if isinstance(entry, Message) and entry.direction == "receive" and entry.kind == "activation":
                here |= {(value, entry.microbatch) for value in entry.values}
            if isinstance(entry, Compute) and entry.action.kind == "F" and entry.rows:
                stage, m = plan.stages[entry.action.stage], entry.action.microbatch
                here |= {(f"b{b}.0", m) for b in range(stage.first, stage.last)}
                read = {r for b in range(stage.first, stage.last) for r in plan.graph.blocks[b].inputs if r[0] == "b"}
                assert all((value, m) in here for value in read)
        assert set(home.values()) == set(range(len(plan.stages)))


def test_a_value_goes_directly_to_every_later_stage_that_reads_it() -> None:
    plan = pipeline_plan(chain(skips=SKIPS), positions=4)
    found = {(t.source, t.target): t.values for t in transfers(plan)}
    assert found == {
        (0, 1): ("b1.0",), (0, 2): ("b0.0",), (0, 3): ("b1.0",), (1, 2): ("b2.0", "b3.0"), (2, 3): ("b5.0",),
    }  # fmt: skip


def test_values_for_a_stage_on_the_same_rank_are_not_sent() -> None:
    plan = pipeline_plan(chain(skips=[(0, 5)]), positions=2, turns=2, schedule="interleaved", microbatches=2)
    assert (0, 2) not in {(t.source, t.target) for t in transfers(plan)}
    assert {t.source % 2 != t.target % 2 for t in transfers(plan)} == {True}


def test_integer_values_are_sent_but_their_gradients_are_not() -> None:
    graph = chain()
    kind = graph.classes[graph.blocks[2].kind]
    whole = replace(kind.ops[0], outputs=(replace(kind.ops[0].outputs[0], requires_grad=False),))
    integers = replace(kind, ops=(whole,))
    changed = replace(
        graph,
        classes=(*graph.classes, integers),
        blocks=(*graph.blocks[:3], replace(graph.blocks[3], kind=len(graph.classes)), *graph.blocks[4:]),
    )
    plan = pipeline_plan(changed, positions=2)
    first, _ = lower(plan)
    assert [(entry.kind, entry.values) for entry in messages(first)] == [("activation", ("b3.0",))]


def test_bytes_of_a_message_are_those_of_its_values_for_the_rows_of_the_replica() -> None:
    plan = pipeline_plan(chain(), positions=2, replicas=2, microbatches=(5, 2))
    sent = {(p.replica, e.microbatch): e.bytes for p in lower(plan) for e in messages(p) if e.kind == "activation"}
    row = 100 * 4  # elements of a block's output, float32
    assert sent == {(0, 0): 3 * row, (1, 0): 2 * row, (0, 1): row, (1, 1): row}


@pytest.mark.parametrize(("precision", "item"), [("float64", 8), ("bfloat16", 2), ("bfloat16-autocast", 4)])
def test_messages_have_the_type_of_the_run(precision: str, item: int) -> None:
    plan = pipeline_plan(chain(), positions=2, settings=RunSettings(precision=precision))  # type: ignore[arg-type]
    assert {entry.bytes for entry in messages(lower(plan)[0])} == {2 * 100 * item}


def test_tags_are_unique_among_the_messages_of_a_replica() -> None:
    plan = pipeline_plan(chain(skips=SKIPS), positions=4, replicas=2, microbatches=6)
    tags = Counter((p.replica, e.tag) for p in lower(plan) for e in messages(p) if e.direction == "send")
    assert max(tags.values()) == 1


def test_equal_ranks_share_their_instructions() -> None:
    programs = lower(pipeline_plan(chain(), replicas=8))
    assert len({id(program.instructions) for program in programs}) == 1


def test_one_replicated_stage_expects_ddp_in_the_last_backward_only() -> None:
    plan = replace(pipeline_plan(chain(), replicas=2, microbatches=3), bucket_bytes=9_000)
    kinds = [type(entry).__name__ for entry in lower(plan)[0].instructions]
    # Eight weights of 4,000 bytes: a bucket closes once it holds 9,000, so three at a time.
    assert kinds == ["Compute"] * 6 + ["Collective"] * (3 + 2) + ["OptimizerStep"]
    buckets = [entry for entry in collectives(lower(plan)[0]) if entry.engine == "ddp"]
    assert [entry.bytes for entry in buckets] == [12_000, 12_000, 8_000]
    assert [name for bucket in ddp_buckets(plan) for name in bucket.names] == [f"blocks.{i}.weight" for i in range(8)][
        ::-1
    ]


def test_gradients_become_ready_in_reverse_and_a_tied_one_at_its_first_use() -> None:
    plan = pipeline_plan(gpt_graph(layers=1, tied=True), replicas=2)
    names = [name for bucket in ddp_buckets(plan) for name in bucket.names]
    # p2, p3, p6 and p7 of a layer and the head's (the embedding's own, tied) are what its ops read.
    assert names[:5] == ["layers.0.p7", "layers.0.p6", "layers.0.p3", "layers.0.p2", "embedding.weight"]
    assert sorted(names) == sorted(plan.graph.parameters)


def test_replicated_stages_reduce_their_own_buckets_after_their_last_backward() -> None:
    plan = pipeline_plan(chain(), positions=2, replicas=2, microbatches=3)
    for program in lower(plan):
        last = max(i for i, entry in enumerate(program.instructions) if isinstance(entry, Compute))
        reductions = [
            i for i, e in enumerate(program.instructions) if isinstance(e, Collective) and e.purpose == "gradients"
        ]
        assert reductions and min(reductions) > last
        ranks = (0, 1) if program.rank < 2 else (2, 3)
        assert {program.instructions[i].ranks for i in reductions} == {ranks}  # type: ignore[union-attr]


def test_every_trainable_parameter_is_reduced_exactly_once() -> None:
    plan = pipeline_plan(chain(tied=[(0, 7)]), positions=2, replicas=2)
    names = [name for s in range(2) for bucket in gradient_buckets(plan, s) for name in bucket.names]
    tied = [entry.unit for entry in collectives(lower(plan)[0]) if entry.purpose == "tied"]
    assert sorted([*names, *tied]) == sorted(plan.graph.parameters)


def test_a_tied_parameter_is_summed_over_all_ranks_that_hold_it() -> None:
    plan = pipeline_plan(chain(tied=[(0, 7)]), positions=4, replicas=2)
    tied = {p.rank: [e for e in collectives(p) if e.purpose == "tied"] for p in lower(plan)}
    assert [rank for rank, found in tied.items() if found] == [0, 1, 6, 7]
    assert tied[0][0].ranks == (0, 1, 6, 7)


def test_shards_of_a_tied_parameter_are_summed_between_the_holders_of_each_shard() -> None:
    plan = pipeline_plan(chain(tied=[(0, 7)]), positions=2, replicas=2, sharding="parameters")
    tied = {p.rank: e for p in lower(plan) for e in collectives(p) if e.purpose == "tied"}
    assert {rank: entry.ranks for rank, entry in tied.items()} == {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}
    assert {entry.bytes for entry in tied.values()} == {1_000 // 2 * 4}


def fsdp(plan: Plan, index: int) -> str:
    """FSDP2's collectives behind the index-th computation of rank 0: g for gather, s for scatter, with the block."""
    entries: list[Instruction] = list(lower(plan)[0].instructions)
    at = [i for i, entry in enumerate(entries) if isinstance(entry, Compute)][index]
    found = []
    for entry in entries[at + 1 :]:
        if not (isinstance(entry, Collective) and entry.engine == "fsdp"):
            break
        found.append(
            ("g" if entry.kind == "all_gather" else "s") + entry.unit.removeprefix("blocks.").removeprefix("layers.")
        )
    return " ".join(found)


def test_sharded_parameters_are_gathered_and_scattered_in_the_order_fsdp2_was_seen_to_use() -> None:
    # Seen with torch 2.13 on two ranks: a root, an embedding whose input has no gradient, three blocks.
    plan = pipeline_plan(gpt_graph(layers=3, tied=True), replicas=2, microbatches=2, sharding="parameters")
    assert fsdp(plan, 0) == "groot g0 g1 g2 ghead"
    assert fsdp(plan, 1) == "ghead g2 g1 g0"
    assert fsdp(plan, 3) == "ghead g2 shead g1 s2 g0 s1 s0 sroot"


def test_sharded_gradients_keep_parameters_gathered_until_the_backward_is_done() -> None:
    plan = pipeline_plan(gpt_graph(layers=1), replicas=2, microbatches=2, sharding="gradients", schedule="gpipe")
    assert fsdp(plan, 0) == "gembedding g0 ghead"
    assert fsdp(plan, 1) == ""
    # The first block prefetches what ran before it, which is the end of the other microbatch.
    assert fsdp(plan, 2) == "ghead"
    assert fsdp(plan, 3) == "g0 shead gembedding s0 sembedding"


def test_shards_are_padded_to_a_multiple_of_the_ranks() -> None:
    plan = pipeline_plan(chain(1), replicas=3, sharding="parameters", microbatches=(3,))
    (unit,) = shard_units(plan, 0)
    assert unit.bytes == -(-1_000 // 3) * 3 * 4


def test_the_norm_and_the_loss_are_summed_over_the_whole_world_before_the_update() -> None:
    plan = pipeline_plan(chain(), positions=2, replicas=2)
    for program in lower(plan):
        norm, loss, update = program.instructions[-3:]
        assert isinstance(norm, Collective) and isinstance(loss, Collective) and isinstance(update, OptimizerStep)
        assert (norm.purpose, loss.purpose, norm.ranks) == ("norm", "loss", (0, 1, 2, 3))


def test_without_clipping_there_is_no_norm() -> None:
    plan = pipeline_plan(chain(), positions=2, settings=RunSettings(clip_norm=None))
    assert [entry.purpose for entry in collectives(lower(plan)[0])] == ["loss"]


def test_one_device_communicates_nothing() -> None:
    (program,) = lower(pipeline_plan(chain(), microbatches=3))
    assert not messages(program) and not collectives(program)


def two_stages() -> tuple[Program, Program]:
    first, second = lower(pipeline_plan(chain(), positions=2, microbatches=3))
    return first, second


def planted(program: Program, index: int, entry: Message | None) -> Program:
    """The program with its index-th message replaced, or left out."""
    at = [i for i, e in enumerate(program.instructions) if isinstance(e, Message)][index]
    kept = [*program.instructions[:at], *([entry] if entry else []), *program.instructions[at + 1 :]]
    return replace(program, instructions=tuple(kept))


def test_a_missing_message_is_found() -> None:
    first, second = two_stages()
    found = agreement((first, planted(second, 0, None)))
    assert found and "microbatch 0" in found[0]


def test_another_size_is_found_and_named() -> None:
    first, second = two_stages()
    short = replace(messages(second)[0], sizes=(4,))
    assert "disagree in sizes" in agreement((first, planted(second, 0, short)))[0]


def test_another_order_is_found() -> None:
    first, second = two_stages()
    a, b = messages(second)[0], messages(second)[1]
    assert "disagree in microbatch" in agreement((first, planted(planted(second, 0, b), 1, a)))[0]


def test_a_collective_that_one_rank_lacks_is_found() -> None:
    first, second = two_stages()
    short = replace(second, instructions=tuple(e for e in second.instructions if not isinstance(e, Collective)))
    found = agreement((first, short))
    assert any("all_reduce of norm" in message and "nothing more" in message for message in found)


def test_crossing_sends_are_found_as_a_deadlock() -> None:
    first, second = two_stages()
    forward = next(e for e in messages(first) if e.direction == "send")
    back = next(e for e in messages(second) if e.direction == "send")
    ours = (forward, replace(back, direction="receive", peer=1))
    theirs = (back, replace(forward, direction="receive", peer=0))
    crossed = (replace(first, instructions=ours), replace(second, instructions=theirs))
    assert len(agreement(crossed)) == 2


def test_a_peer_without_a_program_is_found() -> None:
    first, _ = two_stages()
    assert agreement((first,)) == ("rank 0 communicates with rank 1, which has no program",)


def test_programs_of_one_replica_agree_among_themselves() -> None:
    plan = pipeline_plan(chain(), positions=2, replicas=4)
    assert agreement(lower(plan, columns=[connected_replicas(plan)[2]]), partial=True) == ()


def test_a_graph_without_a_loss_lowers_too() -> None:
    graph: Graph = chain()
    plan = pipeline_plan(replace(graph, loss=replace(graph.loss, reduction="none")), positions=2)
    assert agreement(lower(plan)) == ()
