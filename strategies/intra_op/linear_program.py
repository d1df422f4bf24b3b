"""A linear program that is given to OR-tools as arrays: adding it up term by term takes many times as long as solving.

    minimise    c x    with  low <= A x <= high,  0 <= x <= upper,  some x whole numbers

`LinearProgram` collects it, `spending` gives it other costs and fixes variables; `solve` gives the optimum and every
variable's value, `relaxed` from where the last solve of the same constraints ended, a few steps away. The programs are
small, solved by the hundred: what is done before a solver begins, and turning duals and bases into objects, took longer
than solving.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ortools.math_opt import (
    callback_pb2,
    model_parameters_pb2,
    model_pb2,
    model_update_pb2,
    result_pb2,
    sparse_containers_pb2,
)
from ortools.math_opt.core.python import solver as core
from ortools.math_opt.python import mathopt

from placer.errors import PlacerError

# Of integer programs: (objective - bound) / objective at which one is solved.
GAP = 1e-9
# Solvers take for nothing what is below some 1e-7: the largest cost is given to them as this.
LARGEST = 1e3


def _branching() -> mathopt.SolveParameters:
    """Programs so small are branched on sooner than cuts and heuristics are tried, at the variable nearest to a half:
    to try out what others would gain takes several times as long as the few branches that it saves."""
    off = mathopt.Emphasis.OFF
    asked = mathopt.SolveParameters(relative_gap_tolerance=GAP, presolve=mathopt.Emphasis.LOW, cuts=off, heuristics=off)
    asked.gscip.int_params["branching/mostinf/priority"] = 1_000_000
    return asked


# What each is asked to do, and where that stops short once more in another way. GLOP's last word is IMPRECISE of some
# programs whose numbers lie far apart, whichever way it takes; SCIP solves these.
WAYS = {
    mathopt.SolverType.GLOP: (
        (mathopt.SolverType.GLOP, mathopt.SolveParameters(lp_algorithm=mathopt.LPAlgorithm.DUAL_SIMPLEX)),
        (mathopt.SolverType.GLOP, mathopt.SolveParameters()),
        (mathopt.SolverType.GSCIP, mathopt.SolveParameters(relative_gap_tolerance=GAP)),
    ),
    mathopt.SolverType.GSCIP: (
        (mathopt.SolverType.GSCIP, _branching()),
        (mathopt.SolverType.GSCIP, mathopt.SolveParameters(relative_gap_tolerance=GAP)),
    ),
}
_NONE = (mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The least value of the objective, and each variable's."""

    value: float
    variables: list[float]


@dataclass(slots=True)
class LinearProgram:
    """Variables are numbered from 0 as they are made; terms are (variable, coefficient)."""

    upper: list[float] = field(default_factory=list)
    cost: dict[int, float] = field(default_factory=dict)
    bounds: list[tuple[float, float]] = field(default_factory=list)
    rows: list[dict[int, float]] = field(default_factory=list)
    fixed: dict[int, float] = field(default_factory=dict)
    #: What is given to a solver but for costs and whole numbers; made with the first solve, complete by then.
    given: list[model_pb2.ModelProto] = field(default_factory=list)
    #: The solver that `relaxed` asks, as the last solve left it.
    warm: list[_Warm] = field(default_factory=list)

    def variable(self, upper: float = 1.0) -> int:
        """A new variable from 0 to `upper`."""
        self.upper.append(upper)
        return len(self.upper) - 1

    def constrain(self, terms: Iterable[tuple[int, float]], low: float, high: float) -> None:
        """Require low <= sum of terms <= high."""
        row: dict[int, float] = {}
        for variable, coefficient in terms:
            row[variable] = row.get(variable, 0.0) + coefficient
        self.rows.append(row)
        self.bounds.append((low, high))

    def spend(self, variable: int, cost: float) -> None:
        """Add to a variable's coefficient in the objective."""
        self.cost[variable] = self.cost.get(variable, 0.0) + cost

    def spending(self, more: dict[int, float], fixed: dict[int, float]) -> LinearProgram:
        """The complete program with these costs of variables that cost nothing in it, and these values of variables: of
        the same ones each time."""
        return replace(self, cost=self.cost | more, fixed=fixed)

    def relaxed(self) -> Optimum | None:
        """The optimum where no variable need be a whole number; None where there is no solution.

        Raises PlacerError as `solve` does.
        """
        scale = self._scale()
        spent = {variable: cost * scale for variable, cost in self.cost.items() if cost}
        if not self.warm:
            self.warm.append(_Warm(self._proto(scale, ())))
        result = self.warm[0].solve(spent, self.fixed)
        reason = mathopt.TerminationReason(result.termination.reason)
        if reason == mathopt.TerminationReason.OPTIMAL:
            return self._optimum(result, scale)
        if reason in _NONE:
            return None
        self.warm.clear()
        return self.solve(mathopt.SolverType.GLOP)

    def solve(self, solver: mathopt.SolverType, whole: Sequence[int] = ()) -> Optimum | None:
        """The optimum by one solver, these variables whole numbers; None where there is no solution.

        Raises PlacerError where the solver stops short, and the next one too.
        """
        scale = self._scale()
        proto = self._proto(scale, whole)
        for other, parameters in WAYS[solver]:
            result = _solved(proto, other, parameters)
            reason = mathopt.TerminationReason(result.termination.reason)
            if reason in _NONE:
                return None
            if reason == mathopt.TerminationReason.OPTIMAL:
                return self._optimum(result, scale)
        size = f"{len(self.upper)} variables and {len(self.rows)} constraints"
        raise PlacerError(f"{solver.name} stopped with {reason.name} on a program of {size}")

    def _scale(self) -> float:
        """What costs are given to a solver times this."""
        return LARGEST / max(map(abs, self.cost.values())) if any(self.cost.values()) else 1.0

    def _optimum(self, result: result_pb2.SolveResultProto, scale: float) -> Optimum:
        found = result.solutions[0].primal_solution
        values = [0.0] * len(self.upper)
        for variable, value in zip(found.variable_values.ids, found.variable_values.values, strict=True):
            values[variable] = value
        return Optimum(value=found.objective_value / scale, variables=values)

    def _proto(self, scale: float, whole: Sequence[int]) -> model_pb2.ModelProto:
        if not self.given:
            self.given.append(self._constraints())
        proto = model_pb2.ModelProto()
        proto.CopyFrom(self.given[0])
        for variable in whole:
            proto.variables.integers[variable] = True
        for variable, value in self.fixed.items():
            proto.variables.lower_bounds[variable] = proto.variables.upper_bounds[variable] = value
        spent = [(x, cost) for x, cost in sorted(self.cost.items()) if cost]
        proto.objective.linear_coefficients.ids.extend([x for x, _ in spent])
        proto.objective.linear_coefficients.values.extend([cost * scale for _, cost in spent])
        return proto

    def _constraints(self) -> model_pb2.ModelProto:
        proto, count = model_pb2.ModelProto(), len(self.upper)
        proto.variables.ids.extend(range(count))
        proto.variables.lower_bounds.extend([0.0] * count)
        proto.variables.upper_bounds.extend(self.upper)
        proto.variables.integers.extend([False] * count)
        proto.linear_constraints.ids.extend(range(len(self.rows)))
        proto.linear_constraints.lower_bounds.extend([low for low, _ in self.bounds])
        proto.linear_constraints.upper_bounds.extend([high for _, high in self.bounds])
        entries = [(r, x, a) for r, row in enumerate(self.rows) for x, a in sorted(row.items()) if a]
        proto.linear_constraint_matrix.row_ids.extend([r for r, _, _ in entries])
        proto.linear_constraint_matrix.column_ids.extend([x for _, x, _ in entries])
        proto.linear_constraint_matrix.coefficients.extend([a for _, _, a in entries])
        return proto


def _solved(
    proto: model_pb2.ModelProto, solver: mathopt.SolverType, parameters: mathopt.SolveParameters
) -> result_pb2.SolveResultProto:
    """What the solver says of a program."""
    return core.solve(
        proto, solver.value, mathopt.StreamableSolverInitArguments().to_proto(), parameters.to_proto(),
        model_parameters_pb2.ModelSolveParametersProto(), None, callback_pb2.CallbackRegistrationProto(), None, None,
    )  # fmt: skip


class _Warm:
    """GLOP with the basis of its last solve: of other costs it is still feasible, of other values that are fixed still
    optimal but for these."""

    def __init__(self, proto: model_pb2.ModelProto) -> None:
        spent = proto.objective.linear_coefficients
        self.spent = dict(zip(spent.ids, spent.values, strict=True))
        self.fixed: dict[int, float] = {}
        self.solver = core.new(mathopt.SolverType.GLOP.value, proto, mathopt.StreamableSolverInitArguments().to_proto())

    def solve(self, spent: dict[int, float], fixed: dict[int, float]) -> result_pb2.SolveResultProto:
        """What the solver says of the program with these costs and values."""
        moved = model_update_pb2.ModelUpdateProto()
        costs = {x: spent.get(x, 0.0) for x in sorted(spent.keys() | self.spent.keys())}
        _put(moved.objective_updates.linear_coefficients, costs)
        _put(moved.variable_updates.lower_bounds, fixed)
        _put(moved.variable_updates.upper_bounds, fixed)
        self.solver.update(moved)
        way = mathopt.LPAlgorithm.PRIMAL_SIMPLEX if fixed == self.fixed else mathopt.LPAlgorithm.DUAL_SIMPLEX
        self.spent, self.fixed = spent, fixed
        asked = mathopt.SolveParameters(lp_algorithm=way, presolve=mathopt.Emphasis.OFF)
        none = model_parameters_pb2.ModelSolveParametersProto(), None, callback_pb2.CallbackRegistrationProto()
        return self.solver.solve(asked.to_proto(), *none, None, None)


def _put(vector: sparse_containers_pb2.SparseDoubleVectorProto, values: dict[int, float]) -> None:
    vector.ids.extend(values)
    vector.values.extend(values.values())
