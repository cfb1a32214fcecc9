from __future__ import annotations

import pytest

from minitrain.bench import speculation
from minitrain.measure.clock import threads

from .test_bench import check_contract


def test_speculation_small():
    pytest.importorskip("transformers")
    with threads(1):
        cases = speculation.cases(repeats=1, tokens=12, model="0.5M", lessons=(9, 8, 2))
        rows = [case.row() for case in cases]
    check_contract(rows)
    assert [row.peer_name.split()[0] for row in rows] == [
        *["minitrain"] * 6,
        "assistant_model",
        *["prompt_lookup_num_tokens"] * 2,
        *["minitrain"] * 2,
    ]
    assert all("formula" in row.name for row in rows[:3])
