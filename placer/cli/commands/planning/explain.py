"""Show a plan: what goes where, its predicted seconds and bytes, why the runners-up lost.

Exit 2 if the plan breaks a rule (1 if it only does not fit); each broken one is named.

Example: placer explain plan.json --program --rank 0 --code
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from pydantic import JsonValue
from rich.console import Group
from rich.text import Text

from placer.cli.options import ForCluster, Json, PlanFile, load_plan, print_result
from placer.errors import UsageError
from placer.legality import check, error_of
from placer.plans.plan import Plan
from placer.program.instructions import Collective, Compute, Instruction, Message, Program, program_document
from placer.program.lowering import lower
from placer.report.documents import Document, plan_document
from placer.report.mixed_allreduce import route_document, route_text
from placer.report.ops import ops_document, ops_view
from placer.report.plan_table import plan_view
from placer.report.printing import bytes_text


def run(
    plan_file: PlanFile,
    cluster: ForCluster = None,
    program: Annotated[bool, typer.Option("--program", help="Show what one rank does in a step, in order.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="With --program: the rank whose program is shown.")] = 0,
    code: Annotated[bool, typer.Option("--code", help="With --program: also what the rank's blocks run.")] = False,
    ops: Annotated[bool, typer.Option("--ops", help="Also list the ops without a FLOP rule or a split rule.")] = False,
    json: Json = False,
) -> None:
    """Load, print."""
    plan = load_plan(plan_file, cluster, illegal=not program)
    if not program:
        found = check(plan)
        broken = [str(violation) for violation in found]
        listed: list[JsonValue] = list(broken)
        shown = replace(plan, ledger=None) if broken else plan  # an illegal plan has no seconds or bytes to believe
        view = Group(
            plan_view(shown),
            *(Text(f"breaks a rule: {rule}", style="bold red") for rule in broken),
            *(ops_view(plan.graph) if ops else ()),
        )
        more = ops_document(plan.graph) if ops else {}
        print_result(view, plan_document(plan) | {"violations": listed} | more, json)
        if broken:
            raise typer.Exit(error_of(found).exit_code)
        return
    chosen, blocks = _program(plan, rank), ""
    if code:
        from placer.runtime.executor.code_text import rank_code  # the model is built, without weights

        blocks = rank_code(plan, rank)
    lines = [_told(plan, instruction, rank) for instruction in chosen.instructions]
    steps: list[JsonValue] = [_document(plan, instruction, rank) for instruction in chosen.instructions]
    title = f"rank {rank} on device {chosen.device}, replica {chosen.replica}, stages {list(chosen.stages)}"
    told = Text("\n".join((title, *lines, *([blocks] if blocks else []))))
    document: Document = {"rank": rank, "device": chosen.device, "instructions": steps, "code": blocks}
    print_result(told, document | {"program": program_document(chosen)}, json)


def _program(plan: Plan, rank: int) -> Program:
    programs = lower(plan)
    if rank >= len(programs):
        raise UsageError(f"--rank {rank} asks for a rank the plan does not have; it has ranks 0 to {len(programs) - 1}")
    return programs[rank]


def _told(plan: Plan, instruction: Instruction, rank: int) -> str:
    """An instruction, and in which way and why where it sums over unlike ranks."""
    way = route_text(plan, instruction, rank) if isinstance(instruction, Collective) else ""
    return f"{instruction_text(instruction)}{', ' if way else ''}{way}"


def _document(plan: Plan, instruction: Instruction, rank: int) -> JsonValue:
    found = instruction_document(instruction)
    return found | (route_document(plan, instruction, rank) if isinstance(instruction, Collective) else {})


def instruction_text(instruction: Instruction) -> str:
    """One line: `2F0 (4 rows)`, `send activation of 2.0 -> stage 3 ...`."""
    match instruction:
        case Compute():
            return f"{instruction.action} ({instruction.rows} rows)"
        case Message():
            preposition = "to" if instruction.direction == "send" else "from"
            return (
                f"{instruction.direction} {instruction.kind} of microbatch {instruction.microbatch} {preposition} rank "
                f"{instruction.peer}: {', '.join(instruction.values)}, rows {_span(instruction.rows)}"
                f"{_cuts(instruction)} ({bytes_text(instruction.bytes)})"
            )
        case Collective():
            ranks = ", ".join(str(rank) for rank in instruction.ranks)
            return (
                f"{instruction.kind} {instruction.purpose} over ranks {ranks} ({bytes_text(instruction.bytes)}, "
                f"by {instruction.engine})"
            )
        case _:
            return f"update the parameters of stages {', '.join(str(stage) for stage in instruction.stages)}"


def _span(rows: tuple[int, int]) -> str:
    """`3`, `0-5`: the last one included."""
    return str(rows[0]) if rows[1] - rows[0] == 1 else f"{rows[0]}-{rows[1] - 1}"


def _cuts(message: Message) -> str:
    """` [dim 1: 0-7]` where a message carries a part of a value that is whole, or cut otherwise, at one of its ends."""
    found = dict.fromkeys(one for ranges in message.cuts for one in ranges)
    return "".join(f" [dim {one.dim}: {_span((one.start, one.stop))}]" for one in found)


def instruction_document(instruction: Instruction) -> Document:
    """The same for machines: what kind it is, and its numbers under keys that carry units."""
    match instruction:
        case Compute():
            return {"do": "compute", "action": str(instruction.action), "rows": instruction.rows}
        case Message():
            return {
                "do": instruction.direction,
                "what": instruction.kind,
                "microbatch": instruction.microbatch,
                "peer_rank": instruction.peer,
                "values": list(instruction.values),
                "rows": list(instruction.rows),
                "ranges": [[list(one) for one in ranges] for ranges in instruction.cuts],
                "bytes": instruction.bytes,
            }
        case Collective():
            return {
                "do": instruction.kind,
                "what": instruction.purpose,
                "ranks": list(instruction.ranks),
                "bytes": instruction.bytes,
                "issued_by": instruction.engine,
            }
        case _:
            return {"do": "update", "stages": list(instruction.stages)}
