"""The cases of `compare_checkouts.py`, made of the table in `compare_cases.toml`, and its masks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
FILES: dict[str, str] = _TABLE["files"]
MOVED: dict[str, str] = _TABLE["moved"]


@dataclass(frozen=True, slots=True)
class Case:
    """Commands run in a folder; `alone`: in turns with the other checkout, as two processes work; `slow`: not quick."""

    name: str
    commands: tuple[str, ...]
    alone: bool = False
    slow: bool = False

    @property
    def folder(self) -> str:
        """The name as that of a folder."""
        return re.sub(r"\W+", "-", self.name)[:120]


def cases(shared: str) -> Iterator[Case]:
    """Every case; `shared`: a folder whose `placement` holds published problems, or nothing."""
    for name, text in _TABLE["commands"].items():
        commands = [text] if text.startswith("python") else _lines(text)
        yield Case(name, tuple(commands), alone=name in _TABLE["alone"], slow=name in _TABLE["slow"])
    yield from map(_planned, _lines(_TABLE["plans"]))
    yield from (_pinned(problem, _lines(text)) for problem, text in _TABLE["pins"].items())
    yield from map(_set, _lines(_TABLE["settings"]))
    if shared:
        yield _published(Path(shared).resolve() / "placement")
    yield from map(_trained, _lines(_TABLE["runs"]))
    for name in _TABLE["scale"]:
        yield Case(f"scale {name}", (f"-m examples.scale {name} --save plan.json",), alone=True, slow=True)


def is_measured(file: str, path: str) -> bool:
    """Whether the value at that path of a JSON file differs from run to run."""
    return any(re.search(mask["file"], file) and re.fullmatch(mask["what"], path) for mask in _TABLE["measured"])


def unmeasured(file: str, text: bytes) -> bytes:
    """The text of a file without the words that differ from run to run."""
    for mask in _TABLE["said"]:
        if re.search(mask["file"], file):
            text = re.sub(mask["what"].encode(), b"measured", text)
    return text


def _lines(text: str) -> list[str]:
    return text.strip().split("\n")


def _planned(line: str) -> Case:
    return Case(f"plan {line}", (f"{_plan(line)} --json -o plan.json",))


def _plan(line: str) -> str:
    model, cluster, *options = line.split(" ", 2)
    return " ".join((f"plan examples.{model} --cluster {cluster}", *options))


def _pinned(line: str, pins: list[str]) -> Case:
    model, cluster, *_ = line.split()
    again = (f"replan plan.json --cluster {cluster} --json -o '{each}.json' {_pins(each.split())}" for each in pins)
    return Case(f"pins {model}", (f"old: {_plan(line)} -o plan.json", *again))


def _pins(pins: list[str]) -> str:
    return " ".join(f"--pin {pin}" for pin in pins)


def _set(line: str) -> Case:
    return Case(f"settings {line}", (f"python '{_TABLE['setting'].replace('SETTING', line)}'",))


def _published(folder: Path) -> Case:
    commands = (f"{line.replace('IN', str(folder))} --json" for line in _lines(_TABLE["published"]))
    return Case("published placements", tuple(commands))


def _trained(line: str) -> Case:
    kind, _, rest = line.partition(": ")
    plan, _, options = rest.partition(" | ")
    model, *pins = plan.split()
    planned = f"old: plan {_TABLE['run_models'][model]} --cluster small.yaml -o plan.json {_pins(pins)}"
    run = f"ranks=2 execute plan.json --checkpoint ckpt {options}"
    again = f"{run} --steps 4 --json --log-file log.jsonl --report report.json"
    return Case(f"run {kind}", (planned, f"old: {run} --steps 2", again), alone=True)
