"""Plans of a stranger, which no search made, are never below a bound of their outline, nor below a finished search.

Problems are random: chains and small GPTs, with and without ties between their blocks, on devices whose launch costs,
rates, bandwidths, memories and nodes differ. Plans are random too, of any outline that a `Plan` may express: devices in
any order, any shares, any cuts. They are judged by `check` and `estimate_with` alone. What is below the bound of a
finished search must be of a kind that `left_out` names. Each run looks at 200 problems with ties and as many others and
solves 12; with `PLACER_STRANGERS=0:5000 PLACER_CLIMBED=0:300` at those of these seeds.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import pytest

from graphs import BlockSpec, chain_graph, gpt_graph, with_ties
from placer.cluster.cluster import Cluster, Device, Host, Level, Link, Node
from placer.cluster.topology import replica_groups
from placer.costs.communication.gradient_buckets import SIZES
from placer.costs.step_estimate import estimate_with
from placer.errors import InfeasibleError
from placer.graph import Graph
from placer.legality import check
from placer.plans.plan import Layout, Plan, Stage, replica_rows
from placer.plans.settings import RunSettings
from placer.search.judge import solve_with
from placer.search.problem import Problem, Solution, strategy
from placer.strategies.inter_op.bounds.outline import OutlineBounds
from placer.strategies.inter_op.bounds.refined import RefinedBounds
from placer.strategies.inter_op.bounds.schedule import ScheduleTerms
from placer.strategies.inter_op.equivalence import PositionClasses, RangeClasses
from placer.strategies.inter_op.partition.chain_dp import best_cuts
from placer.strategies.inter_op.partition.stage_costs import OutlineCosts
from placer.strategies.intra_op.layouts import layouts
from placer.strategies.space.device_orders import device_orders
from placer.strategies.space.left_out import BUCKETS, DEVICES, LENGTHS, MICROBATCHES, PARTS, STAGES, left_out
from placer.strategies.space.outline import Outline, plan_of, position_counts, recomputes, schedules, shardings
from placer.strategies.space.row_shares import row_shares
from problems import cluster, device, problem

pytestmark = pytest.mark.in_turns

FIRST, LAST = map(int, os.environ.get("PLACER_STRANGERS", "0:200").split(":"))
CLIMBED = range(*map(int, os.environ.get("PLACER_CLIMBED", "0:12").split(":")))
PLANS = 12
# Steps of a climb, far more than any takes.
STEPS = 40
# Plans of a search by moves.
MOVED = 400
ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Stranger:
    """A plan and the outline it is of."""

    outline: Outline
    plan: Plan


def strange_problem(seed: int) -> Problem:
    """A chain or a GPT on strange devices."""
    rng = random.Random(f"stranger {seed}")
    return on_strange_devices(rng, strange_graph(rng), seed)


def tied_problem(seed: int) -> Problem:
    """The same of blocks that share what they hold."""
    rng = random.Random(f"tied {seed}")
    return on_strange_devices(rng, tied_graph(rng), seed)


def on_strange_devices(rng: random.Random, graph: Graph, seed: int) -> Problem:
    """One to four devices that differ in all that costs see, in one node or in several."""
    settings = RunSettings(
        recompute=rng.choice(("auto", "auto", "none", "full")), optimizer=rng.choice(("adamw", "sgd")),
        overlap=rng.random() < 0.7, fusion=rng.random() < 0.5, clip_norm=rng.choice((None, 1.0)),
        precision=rng.choice(("float32", "bfloat16")),
    )  # fmt: skip
    machines = strange_cluster(rng, graph)
    if rng.random() < 0.2:
        settings = replace(settings, offload="optimizer")
    return problem(graph, machines, settings=settings, rows=rng.randint(1, 6), seed=seed)


def strange_graph(rng: random.Random) -> Graph:
    """A chain whose blocks hold from few parameters to many, or a GPT."""
    if rng.random() < 0.25:
        return gpt_graph(layers=rng.randint(1, 3), hidden=rng.choice((16, 64)), sequence=16, tied=rng.random() < 0.5)
    size = rng.uniform(4, 6.5)
    pool = [strange_block(rng, size) for _ in range(rng.randint(1, 3))]
    blocks = [rng.choice(pool) for _ in range(rng.randint(1, 6))]
    alike = [(a, b) for b in range(len(blocks)) for a in range(b) if blocks[a].parameters == blocks[b].parameters]
    return chain_graph(blocks, rows=4, tied=[rng.choice(alike)] if alike and rng.random() < 0.3 else [])


def tied_graph(rng: random.Random) -> Graph:
    """A GPT, or a chain of blocks of few kinds, most of which hold much; some share it."""
    if rng.random() < 0.2:
        return with_ties(rng, gpt_graph(layers=rng.randint(2, 4), hidden=16, sequence=16, tied=rng.random() < 0.5))
    pool = [strange_block(rng, 4)]
    pool += [
        replace(pool[0], flops=10**4, traffic=10**3, saved=10**3, parameters=int(10 ** rng.uniform(5, 8)))
        for _ in range(rng.choice((1, 1, 2)))
    ]
    inner = [rng.choice(pool[1:]) for _ in range(rng.randint(3, 6))]
    return with_ties(rng, chain_graph([pool[0], *inner, pool[rng.randint(0, 1)]], rows=4))


def strange_block(rng: random.Random, size: float) -> BlockSpec:
    """From many parameters that compute little to the contrary."""
    return BlockSpec(
        flops=int(10 ** rng.uniform(4, 8.5)), parameters=int(10 ** rng.uniform(1, size)),
        saved=int(10 ** rng.uniform(2, 5.5)), output=int(10 ** rng.uniform(0, 4)),
        traffic=int(10 ** rng.uniform(2, 6)),
    )  # fmt: skip


def strange_cluster(rng: random.Random, graph: Graph) -> Cluster:
    """Nodes of one or two devices each, of up to three kinds, or one node of them all."""
    backends = rng.choice((("cpu",), ("cuda",), ("cuda",), ("cpu", "cuda")))
    needed = 4 * graph.parameter_bytes + graph.saved_bytes // graph.rows
    chips = [strange_device(rng, rng.choice(backends), needed, f"kind{kind}") for kind in range(rng.randint(1, 3))]
    own = [rng.choice(chips) for _ in range(rng.randint(1, 4))]
    host = Host(link=link(rng), memory_bandwidth=10 ** rng.uniform(9, 11))
    if rng.random() < 0.6:
        return Cluster(name="strange", groups=((Node(name="n", devices=ones(own), link=link(rng), host=host), 1),))
    parts = (own[: len(own) // 2], own[len(own) // 2 :])
    nodes = [
        Node(name=f"n{number}", devices=ones(part), link=link(rng), nic=link(rng), host=host)
        for number, part in enumerate(parts)
        if part
    ]
    return Cluster(
        name="strange", groups=tuple((node, 1) for node in nodes), levels=(Level(name="fabric", link=link(rng)),)
    )


def ones(chips: list[Device]) -> tuple[tuple[Device, int], ...]:
    return tuple((chip, 1) for chip in chips)


def strange_device(rng: random.Random, backend: str, needed: int, name: str) -> Device:
    """A chip whose launches cost from nothing to as much as a block; rates and bandwidths are drawn apart."""
    made = device(
        memory=max(1, int(needed * 10 ** rng.uniform(-0.5, 1.5))), rate=10 ** rng.uniform(10.5, 13),
        bandwidth=10 ** rng.uniform(9, 12), name=name,
    )  # fmt: skip
    launch = rng.choice((0.0, 10 ** rng.uniform(-7, -3)))
    return replace(made, launch_seconds=launch, backend="cpu" if backend == "cpu" else "cuda")


def link(rng: random.Random) -> Link:
    return Link(name="link", latency_seconds=10 ** rng.uniform(-7, -4), bandwidth=10 ** rng.uniform(8, 11.5))


@dataclass(frozen=True)
class Views:
    """A problem under each layout: number, layout (None: whole), bounds."""

    problem: Problem
    layouts: tuple[Layout, ...]
    bounds: dict[int, OutlineBounds]

    @classmethod
    def of(cls, given: Problem) -> Views:
        found = layouts(given, given.costs)
        views = {-1: given.costs} | {number: given.costs.under(each) for number, each in enumerate(found)}
        return cls(given, found, {n: OutlineBounds(given, RangeClasses(given, view)) for n, view in views.items()})

    def layout(self, number: int) -> Layout | None:
        return self.layouts[number] if number >= 0 else None


def strange_outline(rng: random.Random, views: Views) -> Outline | None:
    """Any: devices in any order, any rows of a microbatch, any shares."""
    given, number = views.problem, rng.choice(tuple(views.bounds))
    layout = views.layout(number)
    degree = 1 if layout is None else layout.degree
    units = list(replica_groups(given.cluster, degree))
    counts = position_counts(given, degree)
    if not units or not counts:
        return None
    positions = rng.choice(counts)
    replicas = rng.randint(1, max(1, min(len(units) // positions, given.rows)))
    schedule, virtual = rng.choice(schedules(given, positions))
    rng.shuffle(units)
    order = tuple(chip for unit in units[: positions * replicas] for chip in unit)
    shares = tuple(rng.randint(1, 4) for _ in range(replicas)) if replicas > 1 and rng.random() < 0.6 else ()
    return Outline(
        positions=positions, replicas=replicas, virtual=virtual, rows=given.rows,
        microbatch=rng.randint(replicas, given.rows), schedule=schedule,
        sharding=rng.choice(shardings(given, replicas, schedule)), layout=number, degree=degree,
        device_order=() if order == tuple(range(len(order))) else order, shares=shares,
    )  # fmt: skip


def strange_plan(rng: random.Random, views: Views, outline: Outline) -> Plan:
    """A plan of the outline with cuts, recompute and buckets as they come."""
    given, layout = views.problem, views.layout(outline.layout)
    edges = (0, *accumulate(strange_lengths(rng, outline, len(given.graph.blocks))))
    stages = tuple(
        Stage(
            first=edges[index], last=edges[index + 1], devices=outline.devices(index % outline.positions),
            shares=outline.shares, sharding=outline.sharding, recompute=rng.choice(recomputes(given)),
            layout=None if layout is None else 0, degree=outline.degree,
        )
        for index in range(outline.stages)
    )  # fmt: skip
    return Plan(
        model=given.model, graph=given.graph, cluster=given.cluster, settings=given.settings, stages=stages,
        schedule=outline.schedule, microbatches=outline.microbatches, seed=given.seed,
        layouts=() if layout is None else (layout,), bucket_bytes=rng.choice(SIZES),
    )  # fmt: skip


def strange_lengths(rng: random.Random, outline: Outline, blocks: int) -> list[int]:
    """Blocks of each stage: any, but as even as the outline wants them where stages share a position."""
    stages, lengths = outline.stages, outline.lengths(blocks)
    if outline.virtual > 1:
        found = [lengths.start] * stages
        for index in rng.sample(range(stages), blocks - sum(found)):
            found[index] += 1
        return found
    cuts = sorted(rng.sample(range(1, blocks), stages - 1))
    return [b - a for a, b in zip((0, *cuts), (*cuts, blocks), strict=True)]


def strangers(rng: random.Random, views: Views, count: int) -> Iterator[Stranger]:
    """Legal plans among so many."""
    for _ in range(count):
        outline = strange_outline(rng, views)
        if outline is None:
            continue
        plan = strange_plan(rng, views, outline)
        if not check(plan, views.problem.costs, lowered=False):
            yield Stranger(outline, plan)


def lower_bounds(views: Views, outline: Outline) -> dict[str, float]:
    """Every lower bound of an outline, by name."""
    bounds = views.bounds[outline.layout]
    places = PositionClasses(views.problem, bounds.ranges.costs, outline)
    refined, terms = RefinedBounds(bounds), ScheduleTerms.of(outline)
    quick = refined.quick(outline, places)
    found = {
        "steps": float(bounds.steps(np.array([outline.positions]), outline.replicas, terms)[0]),
        "quick": quick,
        "step": refined.step(outline, places),
        "step below a ceiling": refined.step(outline, places, 2 * quick + 1e-9),
    }
    if outline.virtual == 1:
        found["cuts"] = cut_best(OutlineCosts(bounds, places, outline))
    return found


def cut_best(costs: OutlineCosts) -> float:
    """The value of the best cuts of an outline."""
    found = best_cuts(stages=costs.outline.stages, options=costs.options, rests=costs.rests, ceiling=math.inf)
    return math.inf if found is None or costs.rests.reached[0] > 0 else found.value + costs.places.fixed


def broken_bounds(given: Problem, seed: int) -> tuple[int, list[str]]:
    """How many legal plans of a problem were looked at, and what was above one of them."""
    views, rng = Views.of(given), random.Random(seed)
    looked, found = 0, []
    for each in strangers(rng, views, PLANS):
        looked += 1
        seconds = estimate_with(views.problem.costs, each.plan).step_seconds
        for name, bound in lower_bounds(views, each.outline).items():
            if bound > seconds * ROUNDING:
                found.append(f"seed {seed}: {name} {bound!r} above {seconds!r} of {each.outline}")
    return looked, found


@pytest.mark.parametrize("made", [strange_problem, tied_problem])
def test_no_plan_of_a_stranger_is_below_a_bound_of_its_outline(made: Callable[[int], Problem]) -> None:
    looked, broken = 0, list[str]()
    for seed in range(FIRST, LAST):
        count, found = broken_bounds(made(seed), seed)
        looked += count
        broken += found
    print(f"{LAST - FIRST} problems, {looked} legal plans, {len(broken)} bounds broken")
    assert not broken, "\n".join(broken[:20])
    assert looked > LAST - FIRST


@pytest.mark.parametrize("positions", [1, 2])
def test_no_buckets_are_faster_than_a_bound_where_nodes_sum_among_themselves_first(positions: int) -> None:
    near, far = (Link(name="link", latency_seconds=1e-5, bandwidth=rate) for rate in (1e10, 1e9))
    node = Node(name="node", devices=((device(), 2 * positions),), link=near, nic=far)
    machines = Cluster(name="two", groups=((node, 2),), levels=(Level(name="fabric", link=far),))
    graph, fixed = chain_graph([BlockSpec(parameters=2**22)] * 2, rows=4), RunSettings(overlap=False, clip_norm=None)
    views = Views.of(problem(graph, machines, settings=fixed, rows=4))
    order = (0, 1, 4, 5, 2, 3, 6, 7)  # each position on both nodes
    made = Outline(
        positions=positions, replicas=4, virtual=1, rows=4, microbatch=4, schedule="1f1b", sharding="none",
        device_order=() if positions == 1 else order,
    )  # fmt: skip
    plan = plan_of(views.problem, made, (1,) * (positions - 1), (False,) * positions)
    each = {size: estimate_with(views.problem.costs, replace(plan, bucket_bytes=size)).step_seconds for size in SIZES}
    assert min(each.values()) < each[SIZES[-1]] / ROUNDING
    for name, bound in lower_bounds(views, made).items():
        assert bound <= min(each.values()) * ROUNDING, name


def test_where_blocks_read_more_than_they_save_some_stages_may_need_less_than_if_all_or_none_recomputed() -> None:
    wide, deep = BlockSpec(saved=10, output=25_000, parameters=10), BlockSpec(saved=10**5, output=10, parameters=10)
    graph = chain_graph([wide] * 32 + [deep] * 32, rows=4)
    made = Outline(
        positions=4, replicas=1, virtual=1, rows=4, microbatch=4, schedule="1f1b", sharding="none"
    )  # fmt: skip

    def on(memory: int) -> tuple[Problem, Plan]:
        given = problem(graph, cluster(*[device(memory=memory)] * 4), rows=4)
        return given, plan_of(given, made, (16, 32, 48), (False, False, True, True))

    roomy, plan = on(2**40)
    tight, plan = on(max(held.total for held in estimate_with(roomy.costs, plan).memory))
    assert check(plan, tight.costs, lowered=False) == ()
    for name, bound in lower_bounds(Views.of(tight), made).items():
        assert bound <= estimate_with(tight.costs, plan).step_seconds * ROUNDING, name


def kinds_left_out(given: Problem, plan: Plan) -> set[str]:
    """Of which kinds that no search tries a plan is; empty where it is in the space that `outline` states."""
    rows, stages = plan.microbatches, plan.stages
    found = set[str]()
    if len(set(rows[:-1])) > 1 or rows[-1] > rows[0]:
        found.add(MICROBATCHES)
    if plan.fuses and plan.bucket_bytes not in SIZES:
        found.add(BUCKETS)
    lengths = [stage.last - stage.first for stage in stages]
    if plan.schedule == "interleaved" and max(lengths) - min(lengths) > 1:
        found.add(LENGTHS)
    if len({stage.sharding for stage in stages if stage.replicas > 1}) > 1:
        found.add(STAGES)
    if any(stage.recomputed is not None for stage in stages):
        found.add(PARTS)
    shapes = {(stage.replicas, stage.degree, stage.layout) for stage in stages}
    return found | (_alike_left_out(given, plan) if len(shapes) == 1 else _unlike_left_out(given, plan))


def _alike_left_out(given: Problem, plan: Plan) -> set[str]:
    """The same of devices and shares, where all positions have as many replicas."""
    first, found = plan.stages[0], set[str]()
    costs = given.costs.under(None if first.layout is None else plan.layouts[first.layout])
    orders = device_orders(given.cluster, plan.positions, first.replicas, first.degree)
    used = tuple(chip for mesh in plan.meshes for chip in mesh.devices)
    order = () if used == tuple(range(len(used))) else used
    if order not in orders and (len(given.cluster.nodes) > 1 or len(set(given.cluster.devices)) > 1):
        found.add(DEVICES)
    made = Outline(
        positions=plan.positions, replicas=first.replicas, virtual=1, rows=plan.rows, microbatch=plan.microbatches[0],
        schedule="1f1b", sharding="none", degree=first.degree, device_order=order,
    )  # fmt: skip
    if any(stage.shares != first.shares for stage in plan.stages) or first.shares not in row_shares(made, costs):
        found.add(STAGES)
    return found


def _unlike_left_out(given: Problem, plan: Plan) -> set[str]:
    """The same where positions have replicas of their own: on like devices of like nodes, with equal shares."""
    shares = {STAGES} if any(stage.shares for stage in plan.stages) else set[str]()
    alike = len(given.cluster.nodes) == 1 and len(set(given.cluster.devices)) == 1
    return shares | (set[str]() if alike else {DEVICES})


def neighbours(given: Problem, plan: Plan) -> Iterator[Plan]:
    """Every plan that is one small change away."""
    for index, stage in enumerate(plan.stages):
        changes = [replace(stage, recompute=again) for again in recomputes(given) if again != stage.recompute]
        kept = shardings(given, stage.replicas, plan.schedule)
        changes += [replace(stage, sharding=each) for each in kept if each != stage.sharding]
        for changed in changes:
            yield replace(plan, stages=(*plan.stages[:index], changed, *plan.stages[index + 1 :]))
    for each in {stage.sharding for stage in plan.stages} ^ set(shardings(given, 2, plan.schedule)):
        yield replace(plan, stages=tuple(replace(s, sharding=each if s.replicas > 1 else "none") for s in plan.stages))
    yield from (replace(plan, schedule=each) for each in ("1f1b", "gpipe", "zero-bubble") if each != plan.schedule)
    yield from (replace(plan, bucket_bytes=size) for size in (*SIZES, 3 * plan.bucket_bytes // 2))
    yield from shifted_cuts(plan)
    yield from other_rows(plan)
    yield from other_shares(plan)
    yield from other_devices(given, plan)


def shifted_cuts(plan: Plan) -> Iterator[Plan]:
    """One cut a block earlier or later."""
    for index in range(len(plan.stages) - 1):
        before, after = plan.stages[index : index + 2]
        for cut in (before.last - 1, before.last + 1):
            if before.first < cut < after.last:
                moved = (replace(before, last=cut), replace(after, first=cut))
                yield replace(plan, stages=(*plan.stages[:index], *moved, *plan.stages[index + 2 :]))


def other_rows(plan: Plan) -> Iterator[Plan]:
    """A row from one microbatch to another, one microbatch in two, two in one, all of other equal rows."""
    rows = plan.microbatches
    for size in range(1, plan.rows + 1):
        full, rest = divmod(plan.rows, size)
        yield replace(plan, microbatches=(size,) * full + ((rest,) if rest else ()))
    for a in range(len(rows)):
        for b in range(len(rows)):
            if a != b and rows[a] > 1:
                yield replace(plan, microbatches=tuple(r - (i == a) + (i == b) for i, r in enumerate(rows)))
        if rows[a] > 1:
            yield replace(plan, microbatches=(*rows[:a], rows[a] // 2, rows[a] - rows[a] // 2, *rows[a + 1 :]))
        if a + 1 < len(rows):
            yield replace(plan, microbatches=(*rows[:a], rows[a] + rows[a + 1], *rows[a + 2 :]))


def other_shares(plan: Plan) -> Iterator[Plan]:
    """A share more or less for one replica, of one stage or of all."""
    for index, stage in enumerate(plan.stages):
        if stage.replicas == 1:
            continue
        even = stage.shares or replica_rows(plan.microbatches[0], (), stage.replicas)
        for replica in range(stage.replicas):
            for more in (-1, 1):
                own = tuple(share + more * (i == replica) for i, share in enumerate(even))
                changed = replace(stage, shares=own)
                yield replace(plan, stages=(*plan.stages[:index], changed, *plan.stages[index + 1 :]))
                if len({each.replicas for each in plan.stages}) == 1:
                    yield replace(plan, stages=tuple(replace(each, shares=own) for each in plan.stages))


def other_devices(given: Problem, plan: Plan) -> Iterator[Plan]:
    """Two devices change places; one of them may be unused."""
    used = plan.ranks
    for a in used:
        for b in range(given.cluster.size):
            if b > a or b not in used:
                swap = {a: b, b: a}
                stages = (replace(s, devices=tuple(swap.get(d, d) for d in s.devices)) for s in plan.stages)
                yield replace(plan, stages=tuple(stages))


def climbed(given: Problem, start: Plan, *, within: bool) -> Plan:
    """The plan no neighbour of which is faster, by steps to the best one; `within` the searched space or anywhere."""
    best, seconds = start, estimate_with(given.costs, start).step_seconds
    for _ in range(STEPS):
        found = [
            (estimate_with(given.costs, plan).step_seconds, number, plan)
            for number, plan in enumerate(neighbours(given, best))
            if not check(plan, given.costs, lowered=False) and not (within and kinds_left_out(given, plan))
        ]
        if not found or min(found)[0] >= seconds / ROUNDING:
            break
        seconds, _, best = min(found)
    return best


def moved_away(given: Problem, start: Plan) -> Plan | None:
    """What a search by the table of moves, repairs and kicks makes of a plan."""
    found = strategy("local").solve(replace(given, known_plans=(start,), budget=MOVED, until=None))
    return found.plan if isinstance(found, Solution) else None


def test_no_search_by_moves_from_a_solved_problem_ends_below_its_bound_but_by_what_is_named_as_left_out() -> None:
    below, solutions, most = Counter[str](), 0, 1.0
    for seed in CLIMBED:
        plan, given = solved(seed), strange_problem(seed)
        end = None if plan is None or plan.bound is None else moved_away(given, plan)
        if plan is None or plan.bound is None or end is None:
            continue
        solutions += 1
        seconds = estimate_with(given.costs, end).step_seconds
        assert seconds <= estimate_with(given.costs, plan).step_seconds * ROUNDING
        if plan.bound > seconds * ROUNDING:
            kinds = kinds_left_out(given, end)
            assert kinds, f"seed {seed}: {seconds!r} below the bound {plan.bound!r}: {end.stages}, {end.microbatches}"
            assert kinds <= set(left_out(given)), f"seed {seed}: {kinds} is not named"
            below.update(kinds)
            most = max(most, plan.bound / seconds)
    print(f"{solutions} solved; moves below the bound, by kind: {dict(below)}, at most {most:.3f} times as fast")
    assert solutions


def solved(seed: int) -> Plan | None:
    """The plan of a finished search; None where nothing fits."""
    try:
        found = solve_with(strange_problem(seed), "stages")
    except InfeasibleError:
        return None
    assert not found.ended
    return found.plan


def test_no_climb_from_a_solved_problem_ends_below_its_bound_but_by_what_the_plan_names_as_left_out() -> None:
    below, solutions, most = Counter[str](), 0, 1.0
    for seed in CLIMBED:
        plan, given = solved(seed), strange_problem(seed)
        if plan is None or plan.bound is None:
            continue
        solutions += 1
        told = next(line for line in (*plan.assumptions, "") if "not searched" in line or not line)
        starts = [plan, *(each.plan for each in strangers(random.Random(seed), Views.of(given), 2))]
        for start in starts:
            inside = climbed(given, start, within=True) if not kinds_left_out(given, start) else start
            for end in (inside, climbed(given, start, within=False)):
                seconds = estimate_with(given.costs, end).step_seconds
                if plan.bound <= seconds * ROUNDING:
                    continue
                kinds = kinds_left_out(given, end)
                assert kinds, (
                    f"seed {seed}: {seconds!r} below the bound {plan.bound!r}: {end.stages}, {end.microbatches}"
                )
                assert kinds <= set(left_out(given)), f"seed {seed}: {kinds} is not named"
                assert all(kind in told for kind in kinds)
                below.update(kinds)
                most = max(most, plan.bound / seconds)
    print(
        f"{solutions} solved; ends of climbs below the bound, by kind: {dict(below)}, at most {most:.3f} times as fast"
    )
    assert solutions
