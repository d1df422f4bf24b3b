"""Published results of placement problems, by family, problem and form: published.yaml, checked when it is read."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

from placer.placement.bench_row import Published
from placer.placement.legality import Form


class PublishedResult(BaseModel):
    """The optimum, where it is known, and what systems reached: [value, seconds], either may be missing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    optimum: float | None = None
    systems: dict[str, tuple[float | None] | tuple[float | None, float]] = {}

    @property
    def published(self) -> tuple[Published, ...]:
        """(system, value, seconds) of each system."""
        return tuple(
            (system, result[0], result[1] if len(result) == 2 else None) for system, result in self.systems.items()
        )

    @property
    def known(self) -> tuple[float | None, str]:
        """The optimum, or the best value that a system reached, and which of the two it is."""
        if self.optimum is not None:
            return self.optimum, "optimum"
        values = [value for _, value, _ in self.published if value is not None]
        return (min(values), "best published") if values else (None, "")


_CONTENT = TypeAdapter(dict[str, dict[str, dict[Form, PublishedResult]]])


def published(family: str, problem: str, form: Form) -> PublishedResult | None:
    """What is published of a problem, None where nothing is."""
    return _content().get(family, {}).get(problem, {}).get(form)


@cache
def _content() -> dict[str, dict[str, dict[Form, PublishedResult]]]:
    text = files("placer.placement").joinpath("published.yaml").read_text()
    return _CONTENT.validate_python(yaml.safe_load(text))
