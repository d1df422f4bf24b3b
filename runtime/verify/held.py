"""One precision's steps held to the judge's: what the plan's run gave beside what one device gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from placer.runtime.verify.compressed import SummingRounding
from placer.runtime.verify.eager.rounding import Values, evaluation_of, spread, values_of
from placer.runtime.verify.eager.run import Batch, EagerRun, StepResult
from placer.runtime.verify.report import Comparison
from placer.runtime.verify.verdict import Allowed, moved, scalar, tensors

Compared = Callable[[Values, Mapping[str, float]], list[Comparison]]


@dataclass(frozen=True, kw_only=True)
class Judge:
    """`run` in the precision of the steps; `exact` in float64, where that is another and the model can.

    relative: what every error may be, relative to its tensor's size; of_weights: that of updated weights; unit: of the
    last place of the narrowest type that the steps compute in. label: the precision in words. summing: what replicas
    that sum gradients in 16 bits round. first: for every name of a parameter the one its
    gradient has. start: weights before the first step.
    """

    run: EagerRun
    exact: EagerRun | None
    precision: str
    label: str
    summing: SummingRounding
    relative: float
    of_weights: float
    unit: float
    first: Mapping[str, str]
    start: Values

    @property
    def tolerance(self) -> float:
        """What every error may be, of gradients that are summed in 16 bits too."""
        return self.relative + self.summing.relative

    def step(self, step: int, batch: Batch, ours: StepResult) -> list[Comparison]:
        """One step, after which the judge has the weights that torch's optimizer makes of the plan's gradients."""
        gradients = {name: g for name, g in ours.gradients.items() if self.first.get(name, name) == name}

        def compared(expected: Values, noise: Mapping[str, float]) -> list[Comparison]:
            return self._passed(step, ours, gradients, expected, noise)

        found = self._found(batch, compared)
        agreed = next(entry for entry in found if entry.quantity == "gradients").equal
        self.run.update(gradients if agreed else None)
        return [*found, *self._updated(step, ours)]

    def evaluation(self, step: int, batch: Batch, ours: float) -> Comparison:
        """The loss in evaluation, after that step."""

        def compared(expected: Values, noise: Mapping[str, float]) -> list[Comparison]:
            return [scalar(step, "evaluation", ours, float(expected["evaluation"]), self._allowed(noise, ""))]

        (found,) = self._held(batch, evaluation_of, compared)
        return found

    def _found(self, batch: Batch, compared: Compared) -> list[Comparison]:
        """The comparisons of a pass, whose gradients the judge then has and whose buffers it keeps."""
        found = self._held(batch, values_of, compared)
        self.run.backward(batch)
        return found

    def _held(self, batch: Batch, compute: Callable[[EagerRun, Batch], Values], compared: Compared) -> list[Comparison]:
        """What rounding does is measured where float64 leaves it open, and in what is narrower."""
        if self.precision == "float64":
            with self.run.undone():
                found = compared(compute(self.run, batch), {})
            if all(entry.equal for entry in found):
                return found
        measured = spread(self.run, batch, self.exact, self.unit, compute)
        return compared(measured.expected, measured.noise)

    def _passed(
        self, step: int, ours: StepResult, gradients: Values, expected: Values, noise: Mapping[str, float]
    ) -> list[Comparison]:
        buffers = {name: b for name, b in _named(expected, "buffer ").items() if name in ours.state}
        own = {name: ours.state[name] for name in buffers}
        found = [scalar(step, "loss", ours.loss, float(expected["loss"]), self._allowed(noise, ""))]
        if self.run.settings.clip_norm is not None:
            allowed = self.summing.of_gradients(self._allowed(noise, ""))
            found.append(scalar(step, "norm", ours.norm, float(expected["norm"]), allowed))
        allowed = self.summing.of_gradients(self._allowed(noise, "gradient "))
        found.append(tensors(step, "gradients", gradients, _named(expected, "gradient "), allowed))
        if buffers:
            found.append(tensors(step, "buffers", own, buffers, self._allowed(noise, "buffer ")))
        return found

    def _updated(self, step: int, ours: StepResult) -> list[Comparison]:
        buffers = {name for name, _ in self.run.model.named_buffers(remove_duplicate=False)}
        theirs = {name: tensor for name, tensor in self.run.state().items() if name not in buffers}
        own = {name: tensor for name, tensor in ours.state.items() if name in theirs}
        allowed = Allowed(precision=self.label, relative=self.of_weights)
        way = moved(step, own, theirs, self.start, self.label)
        return [tensors(step, "parameters", own, theirs, allowed), *([way] if way is not None else [])]

    def _allowed(self, noise: Mapping[str, float], prefix: str) -> Allowed:
        named = {name.removeprefix(prefix): size for name, size in noise.items() if name.startswith(prefix)}
        return Allowed(precision=self.label, relative=self.relative, noise=named)


def _named(values: Values, prefix: str) -> Values:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
