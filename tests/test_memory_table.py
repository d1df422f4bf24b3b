"""What a rank holds at once is what the ledger predicts, within ten per cent, where tensors make up the bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.memory_table import CLOSE, TEXT, table_lines
from examples.verify_cases import Case

GPT2 = Case(model="examples.memory_models:gpt2", precision="float32", shapes=TEXT, microbatches=(8,))
CASES = [
    GPT2,
    replace(GPT2, recompute=True),
    replace(GPT2, positions=2, microbatches=(4, 4)),
    replace(GPT2, positions=2, schedule="zero-bubble", microbatches=(2, 2, 2, 2)),
    replace(GPT2, positions=2, schedule="zero-bubble", recompute=True, microbatches=(2, 2, 2, 2)),
    replace(GPT2, degree=2, axis="tensor", microbatches=(4, 4)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rank_holds_at_once_what_the_ledger_predicts(case: Case) -> None:
    for line in table_lines(case):
        assert line.ratios["at once"] == pytest.approx(1, abs=CLOSE), str(line)
