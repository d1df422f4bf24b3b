"""How the ops of one block class are best cut over the devices of a replica: an integer program (OR-tools).

In: a block class, the layouts of what enters and leaves it, and `SplitCosts`. Out: the `Split` of the fewest seconds.
What the linear relaxation says comes in a fraction of the time: mostly the best split, else a bound (`OpenSplit`).

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

Bracketed claims are sums of x, of k, or how the border lies, which is given: one program is for all that it may be. A
conversion that cannot be is no variable. With `fusion` chains of ops cost less than their sum, and the split is the
best only of those that do not count it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from ortools.math_opt.python import mathopt

from placer.graph import BlockClass, Parameter
from placer.plans.plan import Split
from placer.rules.graph_calls import tensor_arguments
from placer.rules.layouts import SAME, Choice, State
from placer.spmd.layout_conversions import border_state, keepable
from placer.strategies.intra_op.linear_program import LinearProgram, Optimum
from placer.strategies.intra_op.split_costs import SplitCosts

# How far from 0 and 1 a claim of the linear relaxation may be.
WHOLE_NUMBER = 1e-6
INFINITE = float("inf")
# So many times the seconds of the dearest choice the host may take in what a solver is given.
LONGER = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """How the values at a block's border lie, "whole" or "cut 1" each; `inner` as of a `Split`."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    inner: int = 1


class BorderStates(NamedTuple):
    """How each value at a block's border may lie."""

    inputs: tuple[tuple[str, ...], ...]
    outputs: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSplit:
    """The best split of a class between given borders, and its seconds for a microbatch."""

    seconds: float
    split: Split


class OpenSplit(NamedTuple):
    """What is known of a best split before it is looked for: it takes no less than these seconds.

    nearer: what is known after some work; None where there is no split.
    """

    seconds: float
    nearer: Callable[[], BestSplit | OpenSplit | None]


class _Sum(NamedTuple):
    """A sum of variables and a number: a claim of the module's formulas."""

    variables: tuple[int, ...] = ()
    constant: float = 0.0


ONE = _Sum(constant=1.0)


@dataclass(frozen=True, slots=True)
class _Use:
    """A user of a value: the claims of the states it may want."""

    wants: dict[State, _Sum]


@dataclass
class BlockProgram:
    """The integer program of one class, without how its borders lie and what bytes and steps are worth.

    chosen: of each op its choices with their claims. kept: the parameters with theirs. lies: of each value at the
    border, inputs first, the claims of how it may lie; none where that is one way.
    """

    kind: BlockClass
    costs: SplitCosts
    linear: LinearProgram = field(default_factory=LinearProgram)
    makers: dict[str, dict[State, _Sum]] = field(default_factory=dict)
    users: dict[str, list[_Use]] = field(default_factory=dict)
    conversions: list[int] = field(default_factory=list)
    binary: list[int] = field(default_factory=list)
    chosen: list[list[tuple[Choice, int]]] = field(default_factory=list)
    kept: list[tuple[Parameter, State, int]] = field(default_factory=list)
    lies: list[dict[str, int]] = field(default_factory=list)

    def claim(self) -> int:
        """A variable that is 1 where its claim holds, else 0."""
        self.binary.append(self.linear.variable())
        return self.binary[-1]

    def require_equal(self, variables: Iterable[int], other: _Sum) -> None:
        """The sum of `variables` is `other`."""
        self.linear.constrain(_difference(variables, other), other.constant, other.constant)

    def require_at_most(self, variable: int, other: _Sum) -> None:
        """A variable is at most `other`."""
        self.linear.constrain(_difference((variable,), other), -INFINITE, other.constant)


def best_split(kind: BlockClass, border: Border, costs: SplitCosts) -> BestSplit | None:
    """The split of the fewest seconds; None where the borders allow none. Raises PlacerError if the solver fails."""
    alone = BorderStates(*(tuple((text,) for text in texts) for texts in (border.inputs, border.outputs)))
    return best_of(block_program(kind, alone, costs), border, costs)


def block_program(kind: BlockClass, states: BorderStates, costs: SplitCosts) -> BlockProgram:
    """The program of a class whose borders may lie so: that of all that the bytes and steps of `costs` may be worth."""
    program = BlockProgram(kind, costs)
    _one_choice(program)
    _borders(program, states)
    _parameters(program)
    for reference in program.users:
        _conversions(program, reference)
    _issued(program)
    return program


def best_of(program: BlockProgram, border: Border, costs: SplitCosts) -> BestSplit | None:
    """`best_split` by a program that was made with these costs, but for what bytes and steps are worth."""
    found = relaxed_of(program, border, costs)
    while isinstance(found, OpenSplit):
        found = found.nearer()
    return found


def relaxed_of(program: BlockProgram, border: Border, costs: SplitCosts) -> BestSplit | OpenSplit | None:
    """`best_of` where the linear relaxation has it, which is then a proof; else what that proves."""
    linear = program.linear.spending(_worth(program, costs), _lying(program, border))
    found = linear.relaxed()
    if found is None:
        return None
    if any(WHOLE_NUMBER < found.variables[x] < 1 - WHOLE_NUMBER for x in program.binary):
        return OpenSplit(found.value, partial(_branched, program, border, linear))
    return _read(program, border, found)


def _branched(program: BlockProgram, border: Border, linear: LinearProgram) -> BestSplit | None:
    found = linear.solve(mathopt.SolverType.GSCIP, whole=program.binary)
    return None if found is None else _read(program, border, found)


def _read(program: BlockProgram, border: Border, solved: Optimum) -> BestSplit:
    names = tuple(next(c.name for c, x in options if solved.variables[x] > 0.5) for options in program.chosen)
    split = Split(choices=names, inputs=border.inputs, outputs=border.outputs, inner=border.inner)
    return BestSplit(seconds=solved.value, split=split)


def _worth(program: BlockProgram, costs: SplitCosts) -> dict[int, float]:
    """What each claim costs of an op's choice and of a parameter's state."""
    found = {k: costs.keeping(parameter, state) for parameter, state, k in program.kept}
    for index, options in enumerate(program.chosen):
        for choice, x in options:
            cost = costs.choices(index)[choice]
            found[x] = cost.inside + costs.tie(cost)
    return found


def _one_choice(program: BlockProgram) -> None:
    """Every op is done in one way."""
    for index, op in enumerate(program.kind.ops):
        options = [(choice, program.claim()) for choice in program.costs.choices(index)]
        program.require_equal((x for _, x in options), ONE)
        for output in range(len(op.outputs)):
            states = ((choice.outputs[output], x) for choice, x in options)
            program.makers[f"o{index}.{output}"] = _by_state(states)
        for number, reference in enumerate(tensor_arguments(op)):
            wants = _by_state((choice.inputs[number], x) for choice, x in options)
            program.users.setdefault(reference, []).append(_Use(wants))
        program.chosen.append(options)


def _borders(program: BlockProgram, states: BorderStates) -> None:
    """What enters and leaves the block lies in one of its ways."""
    for index, texts in enumerate(states.inputs):
        program.makers[f"i{index}"] = _ways(program, texts)
    for reference, texts in zip(program.kind.outputs, states.outputs, strict=True):
        program.users.setdefault(reference, []).append(_Use(_ways(program, texts)))


def _ways(program: BlockProgram, texts: tuple[str, ...]) -> dict[State, _Sum]:
    """The claims of the ways in which a value at the border may lie."""
    program.lies.append({text: program.linear.variable() for text in texts} if len(texts) > 1 else {})
    lies = program.lies[-1]
    return {border_state(text, program.costs.inner): _Sum((lies[text],)) if lies else ONE for text in texts}


def _lying(program: BlockProgram, border: Border) -> dict[int, float]:
    """The claims of how the border lies."""
    texts = (*border.inputs, *border.outputs)
    return {x: float(way == text) for lies, text in zip(program.lies, texts, strict=True) for way, x in lies.items()}


def _parameters(program: BlockProgram) -> None:
    """Parameters are kept whole, or as all of their users want them."""
    for index, parameter in enumerate(program.kind.parameters):
        reference = f"p{index}"
        uses = program.users.get(reference, [])
        common = [s for s in _states(uses) if keepable(s) and all(s in use.wants for use in uses)]
        kept = {state: program.claim() for state in dict.fromkeys((SAME, *common))}
        program.require_equal(kept.values(), ONE)
        for state, k in kept.items():
            if state != SAME:
                for use in uses:
                    program.require_at_most(k, use.wants[state])
            program.kept.append((parameter, state, k))
        program.makers[reference] = {state: _Sum((k,)) for state, k in kept.items()}


def _conversions(program: BlockProgram, reference: str) -> None:
    """Each use finds its value in the state it wants, converted where need be."""
    makers, linear = program.makers[reference], program.linear
    shared: dict[tuple[State, State], int] = {}
    for use in program.users[reference]:
        found: dict[State, list[int]] = {state: [] for state in makers}
        wanted: dict[State, list[int]] = {state: [] for state in use.wants}
        for have in makers:
            for want in use.wants:
                seconds = program.costs.converting(reference, have, want)
                if seconds is None:
                    continue
                e = linear.variable()
                found[have].append(e)
                wanted[want].append(e)
                if have != want and (have, want) not in shared and program.costs.moves(reference, have, want):
                    shared[have, want] = linear.variable()
                    linear.spend(shared[have, want], seconds)
                if (have, want) in shared:
                    program.require_at_most(e, _Sum((shared[have, want],)))
        for state, given in makers.items():
            program.require_equal(found[state], given)
        for state, asked in use.wants.items():
            program.require_equal(wanted[state], asked)
    program.conversions.extend(shared.values())


def _issued(program: BlockProgram) -> None:
    """A pass takes as long as the device or the host, whichever takes longer."""
    costs, linear = program.costs, program.linear
    busy: tuple[list[tuple[int, float]], list[tuple[int, float]]] = ([], [])
    for index, options in enumerate(program.chosen):
        for choice, x in options:
            cost = costs.choices(index)[choice]
            busy[0].append((x, -cost.busy.forward))
            busy[1].append((x, -cost.busy.backward))
    for terms, host, each, issues in zip(busy, costs.host, costs.host_each, (True, costs.trains), strict=True):
        # Solvers take what is below some 1e-6 of a row for nothing: seconds are counted in those of the dearest choice.
        # Where the host takes so much longer that no choice tells, its numbers would be too large for them.
        unit = max([host / LONGER, *(-seconds for _, seconds in terms)]) or 1.0
        moved = [(z, -each / unit) for z in program.conversions] if issues else ()
        taken = linear.variable(INFINITE)
        linear.constrain([(taken, 1.0), *((x, seconds / unit) for x, seconds in terms)], 0.0, INFINITE)
        linear.constrain([(taken, 1.0), *moved], host / unit if issues else 0.0, INFINITE)
        linear.spend(taken, unit)


def _difference(variables: Iterable[int], other: _Sum) -> list[tuple[int, float]]:
    return [*((x, 1.0) for x in variables), *((x, -1.0) for x in other.variables)]


def _by_state(states: Iterable[tuple[State, int]]) -> dict[State, _Sum]:
    found: dict[State, list[int]] = {}
    for state, x in states:
        found.setdefault(state, []).append(x)
    return {state: _Sum(tuple(variables)) for state, variables in found.items()}


def _states(uses: list[_Use]) -> Iterator[State]:
    return iter(dict.fromkeys(state for use in uses for state in use.wants))
