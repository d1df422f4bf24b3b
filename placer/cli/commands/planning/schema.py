"""Print the JSON Schema of plan.json.

Example: placer schema > plan.schema.json
"""

from __future__ import annotations

import json as json_module

from placer.cli.options import Json
from placer.plans.plan import plan_schema


def run(json: Json = False) -> None:
    """Print; the schema is JSON with or without the flag."""
    print(json_module.dumps(plan_schema(), indent=1))
