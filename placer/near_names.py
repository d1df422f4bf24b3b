"""Names that may have been meant by one that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def near_names(name: str, names: Sequence[str]) -> list[str]:
    """Of dotted names those that end in `name`, else up to three that look like it, else the first three."""
    within = [one for one in names if one.endswith(f".{name}")]
    return within or difflib.get_close_matches(name, names, n=3) or list(names[:3])
