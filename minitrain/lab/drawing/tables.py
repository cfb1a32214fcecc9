"""Recorded data as plain rows: dicts, columns or a DataFrame in; JSON's own types out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from minitrain.errors import InputError

Rows = list[dict[str, Any]]


def rows_of(table: Any, name: str = "table") -> Rows:
    """A list of dicts with the same columns; InputError says what is not as it must be."""
    if hasattr(table, "to_dict") and hasattr(table, "columns"):  # a DataFrame
        table = table.to_dict("records")
    if isinstance(table, Mapping):
        table = _from_columns(table, name)
    if not isinstance(table, Sequence) or isinstance(table, (str, bytes)):
        raise InputError(
            f"'{name}' is a {type(table).__name__}; a table is a list of dicts (one a row), "
            "a dict of lists (one a column) or a DataFrame"
        )
    rows = []
    for number, row in enumerate(table):
        if not isinstance(row, Mapping):
            raise InputError(
                f"row {number} of '{name}' is a {type(row).__name__}: each row is a dict, "
                "column name to value"
            )
        rows.append(
            {str(key): plain(value, f"{name}, row {number}, {key}") for key, value in row.items()}
        )
    return _same_columns(rows, name)


def _from_columns(table: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    columns = {
        key: list(values) if hasattr(values, "__iter__") else [values]
        for key, values in table.items()
    }
    sizes = {key: len(values) for key, values in columns.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(
            f"the columns of '{name}' differ in length: {sizes}; each row needs a value in each"
        )
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def _same_columns(rows: Rows, name: str) -> Rows:
    for number, row in enumerate(rows[1:], start=1):
        if set(row) != set(rows[0]):
            missing, extra = sorted(set(rows[0]) - set(row)), sorted(set(row) - set(rows[0]))
            parts = [f"lacks {missing}"] * bool(missing) + [f"has {extra} beside"] * bool(extra)
            raise InputError(
                f"row {number} of '{name}' {' and '.join(parts)}: all rows need the columns "
                f"of row 0, {list(rows[0])}"
            )
    return rows


def plain(value: Any, where: str = "the value") -> Any:
    """Numbers, texts, bools, None, and lists and dicts of them; tensors and arrays are unpacked."""
    if hasattr(value, "tolist"):  # torch and numpy, scalars as arrays
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(
                f"{where} is {value}: a measured number is finite; look at how it came about"
            )
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(inner, where) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner, where) for inner in value]
    raise InputError(
        f"{where} is a {type(value).__name__}, which cannot be kept: "
        "give a number, a text or a list of them"
    )
