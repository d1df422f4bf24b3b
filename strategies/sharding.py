"""How the ops of one block class are best cut over the devices of a replica: an integer program (OR-tools).

In: a block class, the layouts of what enters and leaves it, and `Prices`. Out: the `Split` of the fewest seconds.

    x[o, c]      op o is done as its choice c
    k[p, s]      parameter p is kept in state s
    e[u, h, w]   use u finds its value in state h and wants it in state w
    z[v, h, w]   value v is converted from h to w, once for all of its users

    minimise    F + B + sum over (v, h, w) of seconds to convert * z + sum over (p, s) of seconds to keep * k
    one_choice      sum over c of x[o, c] = 1;  sum over s of k[p, s] = 1
    found, wanted   sum over w of e[u, h, w] = [the maker gives h];  sum over h of e[u, h, w] = [the user wants w]
    converted       e[u, h, w] <= z[v, h, w]
    kept_as_wanted  a parameter kept in a state other than whole is wanted so by all of its users
    issued          F >= sum of forward seconds, F >= seconds the host takes to issue the ops; B the same backward

Bracketed claims are sums of x, of k, or the border's given state. A conversion that cannot be is no variable. With
`fusion` chains of ops cost less than their sum, and the split is the best only of those that do not count it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ortools.math_opt.python import mathopt

from placer.errors import PlacerError
from placer.graph import BlockClass
from placer.plans import Split
from placer.rules import tensor_arguments
from placer.rules.layouts import SAME, SHARED, Choice, Cut, State
from placer.splitting import border_state
from placer.strategies.split_prices import Prices

GAP = 1e-9
# How far from 0 and 1 a claim of the linear relaxation may be.
WHOLE_NUMBER = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """How the values at a block's border lie, "whole" or "cut 1" each."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """The best split of a class between given borders, and its seconds for a microbatch."""

    seconds: float
    split: Split


@dataclass(frozen=True, slots=True)
class _Use:
    """A user of a value: linear expressions for the states it may want."""

    wants: dict[State, mathopt.LinearSum]


@dataclass
class _Program:
    """The integer program of one class between given borders."""

    kind: BlockClass
    prices: Prices
    model: mathopt.Model = field(default_factory=lambda: mathopt.Model(name="sharding"))
    makers: dict[str, dict[State, mathopt.LinearSum]] = field(default_factory=dict)
    users: dict[str, list[_Use]] = field(default_factory=dict)
    cost: list[mathopt.LinearSum] = field(default_factory=list)
    conversions: list[mathopt.Variable] = field(default_factory=list)
    binary: list[mathopt.Variable] = field(default_factory=list)

    def claim(self) -> mathopt.Variable:
        """A variable that is 1 where its claim holds, else 0."""
        self.binary.append(self.model.add_variable(lb=0.0, ub=1.0))
        return self.binary[-1]


def best_split(kind: BlockClass, border: Border, prices: Prices) -> Sharded | None:
    """The split of the fewest seconds; None where the borders allow none. Raises PlacerError if the solver fails."""
    program = _Program(kind, prices)
    chosen = _one_choice(program)
    _borders(program, border)
    _parameters(program)
    for reference in program.users:
        _conversions(program, reference)
    _issued(program, chosen)
    program.model.minimize(mathopt.fast_sum(program.cost))
    solved = _solved(program)
    if solved is None:
        return None
    seconds, values = solved
    names = tuple(next(c.name for c, x in options if values[x] > 0.5) for options in chosen)
    return Sharded(seconds=seconds, split=Split(choices=names, inputs=border.inputs, outputs=border.outputs))


def _solved(program: _Program) -> tuple[float, dict[mathopt.Variable, float]] | None:
    """The optimum. Mostly the linear relaxation has it: then that is a proof, and many times as fast."""
    found = _run(program, mathopt.SolverType.GLOP)
    if found is not None and any(WHOLE_NUMBER < found[1][x] < 1 - WHOLE_NUMBER for x in program.binary):
        for x in program.binary:
            x.integer = True
        found = _run(program, mathopt.SolverType.GSCIP)
    return found


def _run(program: _Program, solver: mathopt.SolverType) -> tuple[float, dict[mathopt.Variable, float]] | None:
    """The optimum by one solver; None where there is no solution."""
    gap = {} if solver == mathopt.SolverType.GLOP else {"relative_gap_tolerance": GAP}
    result = mathopt.solve(program.model, solver, params=mathopt.SolveParameters(**gap))
    reason = result.termination.reason
    if reason in (mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED):
        return None
    if reason != mathopt.TerminationReason.OPTIMAL:
        raise PlacerError(f"{solver.name} stopped with {reason.name} on a block of {len(program.kind.ops)} ops")
    return result.objective_value(), result.variable_values()


def _one_choice(program: _Program) -> list[list[tuple[Choice, mathopt.Variable]]]:
    """Every op is done in one way."""
    model, chosen = program.model, []
    for index, op in enumerate(program.kind.ops):
        options = [(choice, program.claim()) for choice in program.prices.choices(index)]
        model.add_linear_constraint(mathopt.fast_sum(x for _, x in options) == 1)
        for output in range(len(op.outputs)):
            states = ((choice.outputs[output], x) for choice, x in options)
            program.makers[f"o{index}.{output}"] = _by_state(states)
        for number, reference in enumerate(tensor_arguments(op)):
            wants = _by_state((choice.inputs[number], x) for choice, x in options)
            program.users.setdefault(reference, []).append(_Use(wants))
        chosen.append(options)
    return chosen


def _borders(program: _Program, border: Border) -> None:
    """What enters and leaves the block lies as it is told."""
    one = mathopt.LinearSum((1.0,))
    for index, text in enumerate(border.inputs):
        program.makers[f"i{index}"] = {border_state(text): one}
    for reference, text in zip(program.kind.outputs, border.outputs, strict=True):
        program.users.setdefault(reference, []).append(_Use({border_state(text): one}))


def _parameters(program: _Program) -> None:
    """Parameters are kept whole, or as all of their users want them; with what each state costs a step."""
    model = program.model
    for index, parameter in enumerate(program.kind.parameters):
        reference = f"p{index}"
        uses = program.users.get(reference, [])
        common = [s for s in _states(uses) if _keepable(s) and all(s in use.wants for use in uses)]
        kept = {state: program.claim() for state in dict.fromkeys((SAME, *common))}
        model.add_linear_constraint(mathopt.fast_sum(kept.values()) == 1)
        for state, k in kept.items():
            if state != SAME:
                for use in uses:
                    model.add_linear_constraint(k <= use.wants[state])
            program.cost.append(program.prices.keeping(parameter, state) * k)
        program.makers[reference] = {state: mathopt.fast_sum((k,)) for state, k in kept.items()}


def _conversions(program: _Program, reference: str) -> None:
    """Each use finds its value in the state it wants, converted where need be."""
    makers, model = program.makers[reference], program.model
    shared: dict[tuple[State, State], mathopt.Variable] = {}
    for use in program.users[reference]:
        found: dict[State, list[mathopt.Variable]] = {state: [] for state in makers}
        wanted: dict[State, list[mathopt.Variable]] = {state: [] for state in use.wants}
        for have in makers:
            for want in use.wants:
                seconds = program.prices.converting(reference, have, want)
                if seconds is None:
                    continue
                e = model.add_variable(lb=0.0, ub=1.0)
                found[have].append(e)
                wanted[want].append(e)
                if have != want and (have, want) not in shared and program.prices.moves(reference, have, want):
                    shared[have, want] = model.add_variable(lb=0.0, ub=1.0)
                    program.cost.append(seconds * shared[have, want])
                if (have, want) in shared:
                    model.add_linear_constraint(e <= shared[have, want])
        for state, given in makers.items():
            model.add_linear_constraint(mathopt.fast_sum(found[state]) == given)
        for state, asked in use.wants.items():
            model.add_linear_constraint(mathopt.fast_sum(wanted[state]) == asked)
    program.conversions.extend(shared.values())


def _issued(program: _Program, chosen: list[list[tuple[Choice, mathopt.Variable]]]) -> None:
    """A pass takes as long as the device or the host, whichever takes longer."""
    prices, model = program.prices, program.model
    busy: list[list[mathopt.LinearSum]] = [[], []]
    for index, options in enumerate(chosen):
        for choice, x in options:
            seconds = prices.doing(index, choice)
            busy[0].append(seconds.forward * x)
            busy[1].append(seconds.backward * x)
            program.cost.append((prices.inside(index, choice) + prices.tie(index, choice)) * x)
    host = prices.host + prices.host_each * mathopt.fast_sum(program.conversions)
    for terms, least in zip(busy, (host, host if prices.trains else 0.0), strict=True):
        taken = model.add_variable(lb=0.0)
        model.add_linear_constraint(taken >= mathopt.fast_sum(terms))
        model.add_linear_constraint(taken >= least)
        program.cost.append(1.0 * taken)


def _by_state(states: Iterable[tuple[State, mathopt.Variable]]) -> dict[State, mathopt.LinearSum]:
    found: dict[State, list[mathopt.Variable]] = {}
    for state, x in states:
        found.setdefault(state, []).append(x)
    return {state: mathopt.fast_sum(variables) for state, variables in found.items()}


def _states(uses: list[_Use]) -> Iterator[State]:
    return iter(dict.fromkeys(state for use in uses for state in use.wants))


def _keepable(state: State) -> bool:
    return state == SHARED or (isinstance(state.value, Cut) and not state.value.own)
