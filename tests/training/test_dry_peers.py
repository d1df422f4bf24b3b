"""Programs of two ranks held against each other: what is planted in one is found, and both are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from execute_plans import tiny_plan
from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.program.instructions import PROGRAM, Collective, Message, Program, load_program, program_document
from placer.program.lowering import lower
from placer.program.peers import peer_disagreements

PLANS: dict[str, Callable[[], Plan]] = {
    "pipeline x data": lambda: tiny_plan(4, 2),
    "zero-bubble": lambda: tiny_plan(4, 2, schedule="zero-bubble"),
    "interleaved": lambda: tiny_plan(2, 2, schedule="interleaved", looped=2),
    "pipeline x fsdp": lambda: tiny_plan(4, 2, sharding="parameters"),
    "ddp": lambda: tiny_plan(4, 1),
    "a rank without rows": lambda: tiny_plan(4, 2, microbatches=(4, 4, 1)),
}


@cache
def programs(name: str) -> tuple[Program, ...]:
    return lower(PLANS[name]())


@pytest.mark.parametrize("name", PLANS)
def test_the_programs_of_a_plan_agree_pair_by_pair(name: str) -> None:
    for own in programs(name):
        assert peer_disagreements(own, programs(name)) == ()


def places(program: Program, kind: type[Message] | type[Collective]) -> list[int]:
    return [index for index, entry in enumerate(program.instructions) if isinstance(entry, kind)]


def planted(program: Program, at: int, *entries: Message | Collective) -> Program:
    """The program with what stands at `at` replaced by `entries`."""
    before, behind = program.instructions[:at], program.instructions[at + 1 :]
    return replace(program, instructions=(*before, *entries, *behind))


def message(program: Program, number: int) -> tuple[int, Message]:
    at = places(program, Message)[number]
    entry = program.instructions[at]
    assert isinstance(entry, Message)
    return at, entry


def longer(shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    return ((shapes[0][0] + 1, *shapes[0][1:]), *shapes[1:])


BOTH = ("pipeline x data", "zero-bubble", "interleaved", "pipeline x fsdp")


@pytest.mark.parametrize(("name", "number"), list(product(BOTH, (0, 1, -1))))
def test_another_shape_of_a_message_is_found(name: str, number: int) -> None:
    own, peer = programs(name)[0], programs(name)[-2 if len(programs(name)) == 4 else -1]
    at, entry = message(peer, number)
    wrong = planted(peer, at, replace(entry, shapes=longer(entry.shapes)))
    (found,) = peer_disagreements(own, [wrong, *others(name, own, peer)])
    assert (found.rank, found.peer, found.what) == (own.rank, peer.rank, "shapes")
    assert f"rank {own.rank}" in str(found) and f"rank {peer.rank}" in str(found)


@pytest.mark.parametrize(("name", "number"), list(product(BOTH, (0, 1, -1))))
def test_another_type_of_as_many_bytes_is_found(name: str, number: int) -> None:
    own, peer = programs(name)[0], programs(name)[-2 if len(programs(name)) == 4 else -1]
    at, entry = message(peer, number)
    wrong = planted(peer, at, replace(entry, dtypes=("int32",) * len(entry.dtypes)))
    (found,) = peer_disagreements(own, [wrong, *others(name, own, peer)])
    assert (found.peer, found.what) == (peer.rank, "dtypes")


@pytest.mark.parametrize(("name", "number"), list(product(BOTH, (0, 1, -1))))
def test_a_missing_message_is_found(name: str, number: int) -> None:
    own, peer = programs(name)[0], programs(name)[-2 if len(programs(name)) == 4 else -1]
    at, entry = message(peer, number)
    (found,) = peer_disagreements(own, [planted(peer, at), *others(name, own, peer)])
    assert (found.peer, found.what) == (peer.rank, "missing")
    assert f"rank {peer.rank} has none" in found.message
    assert f"microbatch {entry.microbatch}" in found.message


def test_a_message_too_many_is_found() -> None:
    own, peer = programs("pipeline x data")[0], programs("pipeline x data")[2]
    at, entry = message(peer, 1)
    (found,) = peer_disagreements(own, [planted(peer, at, entry, entry), *others("pipeline x data", own, peer)])
    assert (found.peer, found.what) == (peer.rank, "missing")
    assert f"rank {own.rank} has none" in found.message


def test_two_messages_in_another_order_are_found() -> None:
    own, peer = programs("pipeline x data")[0], programs("pipeline x data")[2]
    (first, one), (second, other) = message(peer, 0), message(peer, 1)
    wrong = planted(planted(peer, first, other), second, one)
    found = peer_disagreements(own, [wrong, *others("pipeline x data", own, peer)])
    assert {entry.what for entry in found} == {"order"}
    assert {entry.peer for entry in found} == {peer.rank}


@pytest.mark.parametrize("name", ["pipeline x data", "pipeline x fsdp", "ddp"])
@pytest.mark.parametrize("change", ["dtype", "bytes", "kind", "ranks", "none"])
def test_another_collective_is_found(name: str, change: str) -> None:
    own, peer = programs(name)[0], programs(name)[1]
    at = places(peer, Collective)[0]
    entry = peer.instructions[at]
    assert isinstance(entry, Collective)
    changes = {
        "dtype": [replace(entry, dtype="float16")],
        "bytes": [replace(entry, bytes=entry.bytes + 4)],
        "kind": [replace(entry, kind="reduce_scatter")],
        "ranks": [replace(entry, ranks=(*entry.ranks, 7))],
        "none": [],
    }
    found = peer_disagreements(own, [planted(peer, at, *changes[change]), *others(name, own, peer)])
    wanted = {"none": {"missing"}, "kind": {"missing"}}
    assert {one.what for one in found} == wanted.get(change, {change})
    assert all((one.rank, one.peer) == (own.rank, peer.rank) for one in found)


def test_a_peer_without_a_program_is_named() -> None:
    own, *rest = programs("pipeline x data")
    found = peer_disagreements(own, rest[:-1])
    assert [(one.peer, one.what) for one in found] == [(3, "missing")]


def others(name: str, own: Program, peer: Program) -> list[Program]:
    return [one for one in programs(name) if one.rank not in (own.rank, peer.rank)]


def test_a_program_is_read_back_equal_and_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "program.json"
    for program in programs("pipeline x fsdp"):
        file.write_bytes(PROGRAM.dump_json(program))
        assert load_program(file) == program
    assert isinstance(program_document(programs("ddp")[0]), dict)
    file.write_text('{"rank": 0}')
    with pytest.raises(UsageError, match=r"is not a program: .*placer explain plan\.json --program"):
        load_program(file)
