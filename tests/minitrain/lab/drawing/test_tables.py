"""Recorded tables: three ways to give one, one way to keep it, and words for what is none."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.lab.drawing.tables import column_texts, plain, rows_of, table, table_card
from minitrain.words import bytes_text

ROWS = [{"ranks": 1, "seconds": 0.5}, {"ranks": 2, "seconds": 0.25}]


@pytest.mark.parametrize(
    "table",
    [
        ROWS,
        tuple(ROWS),
        pd.DataFrame(ROWS),
        {"ranks": [1, 2], "seconds": [0.5, 0.25]},
        {"ranks": torch.tensor([1, 2]), "seconds": np.array([0.5, 0.25])},
        [{"ranks": torch.tensor(1), "seconds": np.float64(0.5)}, {"ranks": 2, "seconds": 0.25}],
    ],
)
def test_all_ways_give_the_same_rows(table):
    rows = rows_of(table)
    assert rows == ROWS
    assert json.loads(json.dumps(rows)) == ROWS


@pytest.mark.parametrize(
    "table, said",
    [
        (7, "is a int"),
        ([1, 2], "row 0 of 'scaling' is a int"),
        ([{"a": 1}, {"b": 2}], r"lacks \['a'\] and has \['b'\]"),
        ({"a": [1], "b": [1, 2]}, "differ in length"),
        ([{"a": float("nan")}], "scaling, row 0, a is nan"),
        ([{"a": object()}], "cannot be kept"),
    ],
)
def test_what_is_no_table_is_told(table, said):
    with pytest.raises(InputError, match=said):
        rows_of(table, "scaling")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=8))
def test_plain_keeps_what_is_plain(value):
    assert plain(value) == value


def test_a_table_aligns_numbers_and_formats_columns(capsys):
    rows = [{"ranks": 1, "bytes": 1.2e7, "fabric": "nvlink"}]
    rows += [{"ranks": 16, "bytes": None, "fabric": "ib"}]
    form = {"bytes": lambda v: "–" if v is None else bytes_text(v)}
    card = table_card(rows, "Measured", "bytes", form)
    assert card.text.splitlines() == [
        "Measured",
        "ranks  bytes  fabric",
        "    1  12 MB  nvlink",
        "   16      –  ib",
    ]
    table(rows)
    assert "nvlink" in capsys.readouterr().out


@pytest.mark.parametrize(
    "values, texts",
    [
        ([57.31, 86.0, 49.2], ["57.31", "86.00", "49.20"]),
        ([2093.4, 972.26, None], ["2,093", "972", "–"]),
        ([0.0001, 57.3], ["0.0001", "57.3"]),  # of two orders: each keeps its digits
        ([1.5, "none"], ["1.5", "none"]),
    ],
)
def test_a_column_has_the_same_decimals(values, texts):
    assert column_texts(values) == texts
