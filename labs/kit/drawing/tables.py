"""Tables: converts dicts, columns or a DataFrame to plain rows, to store or display."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from minitrain.errors import InputError
from minitrain.lab.drawing.display import FONT, MUTED, RULE, Rich, display, words
from minitrain.words import number_text

Rows = list[dict[str, Any]]
QUANTITY = re.compile(r"[-+−]?[\d.,]+(e[-+]\d+)?( ?[%a-zA-Zµ/]+)?|–|")  # right-aligned
NAME = 14  # characters: shorter row names do not wrap, and tables still fit 900 pixels


def rows_of(table: Any, name: str = "table") -> Rows:
    """A list of dicts with the same columns; InputError for invalid data."""
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
    """Numbers, strings, bools, None, and lists and dicts of them; tensors and arrays are
    unpacked."""
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


def table(
    data: Any,
    caption: str = "",
    highlight: str = "",
    formats: Mapping[str, Callable[[Any], str]] | None = None,
) -> None:
    """Displays a table: list of dicts, dict of lists, or DataFrame; numbers are right-aligned."""
    display(table_card(rows_of(data), caption, highlight, formats or {}))


def table_card(
    rows: Sequence[Mapping[str, Any]],
    caption: str = "",
    highlight: str = "",
    formats: Mapping[str, Callable[[Any], str]] | None = None,
) -> Rich:
    """The table as an object; `highlight` names the bold column."""
    formats = formats or {}
    columns = list(dict.fromkeys(column for row in rows for column in row))
    values = {c: [row.get(c) for row in rows] for c in columns}
    texts = [
        list(map(formats[c], values[c])) if c in formats else column_texts(values[c])
        for c in columns
    ]
    cells = [list(line) for line in zip(*texts)]
    right = [_are_numbers(column) for column in texts]
    html = f'<table style="{FONT}border-collapse:collapse;margin:6px 0;">'
    if caption:
        html += (
            f'<caption style="{MUTED}text-align:left;padding:2px 8px;">{words(caption)}</caption>'
        )
    html += "<thead><tr>" + "".join(
        _cell("th", c, side, c == highlight) for c, side in zip(columns, right)
    )
    html += "</tr></thead><tbody>"
    for line in cells:
        inside = [
            _cell("td", t, s, c == highlight, one_line=at == 0 and len(t) <= NAME)
            for at, (t, s, c) in enumerate(zip(line, right, columns))
        ]
        html += f"<tr>{''.join(inside)}</tr>"
    return Rich(html + "</tbody></table>", _text_table(columns, cells, right, caption))


def column_texts(values: Sequence[Any]) -> list[str]:
    """One column as short strings: equal decimals if all numbers have one magnitude."""
    shorts = list(map(number_text, values))
    if any(isinstance(v, (bool, str, list, dict)) for v in values):
        return shorts
    numbers = [abs(v) for v in values if isinstance(v, (int, float)) and v]
    if not any(isinstance(v, float) for v in values) or not numbers:
        return shorts
    before = len(str(int(max(numbers)))) if max(numbers) >= 1 else 0
    most = 4 - before if before else 9
    longest = max(len(text.partition(".")[2]) for text in shorts)
    decimals = min(longest, max(0, most))
    is_kept = decimals == longest <= 3 or min(numbers) >= 10 ** (1 - decimals)
    if not is_kept or any("e" in text for text in shorts):
        return shorts  # else the smallest would lose digits
    return [number_text(v) if v is None else f"{v:,.{decimals}f}" for v in values]


def _are_numbers(texts: Sequence[str]) -> bool:
    """True if all or most are numbers, with words such as "not counted" for the missing ones."""
    others = [text for text in texts if not QUANTITY.fullmatch(text)]
    numbers = [text for text in texts if QUANTITY.fullmatch(text) and re.search(r"\d", text)]
    return not others or len(numbers) > len(others)


def _cell(tag: str, text: str, right: bool, bold: bool, one_line: bool = False) -> str:
    weight = "font-weight:600;" if bold or tag == "th" else ""
    wrap = "white-space:nowrap;" if one_line else ""
    side = "right" if right else "left"
    style = f"text-align:{side};padding:3px 12px 3px 8px;{RULE}{weight}{wrap}"
    return f'<{tag} style="{style}">{escape(str(text))}</{tag}>'


def _text_table(columns: list, cells: list[list[str]], right: list[bool], caption: str) -> str:
    lines = [list(map(str, columns)), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    done = [
        "  ".join(t.rjust(w) if r else t.ljust(w) for t, w, r in zip(line, widths, right)).rstrip()
        for line in lines
    ]
    return "\n".join(([caption] if caption else []) + done)
