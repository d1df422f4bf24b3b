"""What a Hugging Face configuration cannot say: a count that would take hours and all memory to build, no dtype."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import JsonValue

from placer.errors import UsageError
from placer.io.files import parsed_json, read_text
from placer.io.refusals import short

# What is built one by one. The deepest published transformer has 1,000 layers (arXiv:2203.00555), the widest mixture
# 2,048 experts (arXiv:2101.03961).
_BUILT = re.compile(r".*(layers?|blocks|depths?|experts)")
MOST_BUILT = 4096
_DTYPE = re.compile(r"auto|(torch\.)?(float|bfloat|int|uint|complex)\w+")


def require_buildable(model: object) -> None:
    """Raise UsageError where `model` names the file of a configuration that says so."""
    path = Path(model) if isinstance(model, str | Path) else None
    if path is not None and path.is_dir():
        path = path / "config.json"
    if path is not None and path.is_file():
        require_sense(parsed_json(read_text(path, "the model"), f"the model {path}"), str(path))


def require_sense(config: JsonValue, where: str) -> None:
    """Raise UsageError where a configuration says so, anywhere in it."""
    left = [config]
    while left:
        found = left.pop()
        if isinstance(found, list):
            left += found
        for name, value in found.items() if isinstance(found, dict) else ():
            left.append(value)
            if name in ("dtype", "torch_dtype") and not _is_dtype(value):
                raise UsageError(f"{where}: {name} is {short(repr(value))}; give one such as float32 or bfloat16")
            if name == "max_position_embeddings" and isinstance(value, int | float) and value < 0:
                raise UsageError(f"{where}: {name} is {short(value)}; give a count of at least 0")
            counts = value if isinstance(value, list) else [value]
            most = max((count for count in counts if isinstance(count, int | float)), default=0)
            if most > MOST_BUILT and _BUILT.fullmatch(name):
                raise UsageError(f"{where}: {short(name)} is {short(most)}; give at most {MOST_BUILT}")


def _is_dtype(value: JsonValue) -> bool:
    """Whether `value` names a type; some configurations of several parts name one for each."""
    if isinstance(value, dict):
        return all(_is_dtype(one) for one in value.values())
    return value is None or (isinstance(value, str) and _DTYPE.fullmatch(value) is not None)
