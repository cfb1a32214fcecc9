"""Tables and cards: what was measured, what was guessed, and how the checks went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from minitrain.lab.drawing.display import (
    FONT,
    MUTED,
    RULE,
    TONES,
    Rich,
    badge,
    box,
    display,
    heading,
    meter,
    words,
)
from minitrain.lab.drawing.tables import rows_of
from minitrain.words import number_text, points_text, score_text

if TYPE_CHECKING:
    from minitrain.lab.grading.grade import CheckResult


def table(
    data: Any,
    caption: str = "",
    highlight: str = "",
    formats: Mapping[str, Callable[[Any], str]] | None = None,
) -> None:
    """Displays a table: list of dicts, dict of lists, or DataFrame; numbers stand at the right."""
    display(table_card(rows_of(data), caption, highlight, formats or {}))


def table_card(
    rows: Sequence[Mapping[str, Any]],
    caption: str = "",
    highlight: str = "",
    formats: Mapping[str, Callable[[Any], str]] | None = None,
) -> Rich:
    """The table as an object; `highlight` names the column that is set in bold."""
    formats = formats or {}
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [[formats.get(c, number_text)(row.get(c)) for c in columns] for row in rows]
    right = [all(isinstance(r.get(c), (int, float, type(None))) for r in rows) for c in columns]
    html = f'<table style="{FONT}border-collapse:collapse;margin:6px 0;">'
    if caption:
        html += (
            f'<caption style="{MUTED}text-align:left;padding:2px 8px;">{escape(caption)}</caption>'
        )
    html += "<thead><tr>" + "".join(
        _cell("th", c, side, c == highlight) for c, side in zip(columns, right)
    )
    html += "</tr></thead><tbody>"
    for line in cells:
        inside = [_cell("td", t, s, c == highlight) for t, s, c in zip(line, right, columns)]
        html += f"<tr>{''.join(inside)}</tr>"
    return Rich(html + "</tbody></table>", _text_table(columns, cells, right, caption))


def _cell(tag: str, text: str, right: bool, bold: bool) -> str:
    weight = "font-weight:600;" if bold or tag == "th" else ""
    side = "right" if right else "left"
    style = f"text-align:{side};padding:3px 12px 3px 8px;{RULE}{weight}"
    return f'<{tag} style="{style}">{escape(str(text))}</{tag}>'


def _text_table(columns: list, cells: list[list[str]], right: list[bool], caption: str) -> str:
    lines = [list(map(str, columns)), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    done = [
        "  ".join(t.rjust(w) if r else t.ljust(w) for t, w, r in zip(line, widths, right)).rstrip()
        for line in lines
    ]
    return "\n".join(([caption] if caption else []) + done)


def card(title: str, text: str = "", rows: Sequence[tuple[str, Any]] = ()) -> None:
    """Displays a title, a sentence, and rows of (name, value)."""
    display(info_card(title, text, rows))


def info_card(
    title: str, text: str = "", rows: Sequence[tuple[str, Any]] = (), tone: str = "info"
) -> Rich:
    """The card as an object."""
    inside = heading(title) + (f"<div>{words(text)}</div>" if text else "")
    if rows:
        inside += '<table style="border-collapse:collapse;margin-top:4px;">'
        for name, value in rows:
            shown = _cell("td", number_text(value), True, True)
            inside += f"<tr>{_cell('td', name, False, False)}{shown}</tr>"
        inside += "</table>"
    plain = [title, *([text] if text else []), *(f"  {n}: {number_text(v)}" for n, v in rows)]
    return Rich(box(inside, tone), "\n".join(plain))


def grade_card(
    title: str, results: Sequence[CheckResult], note: str = "", data: dict[str, Any] | None = None
) -> Rich:
    """Every check with its points; under each failure, what the learner needs to mend it."""
    got, most = sum(r.points for r in results), sum(r.max_points for r in results)
    tone = "good" if got >= most else "bad"
    score = score_text(got, most)
    inside = heading(title, score) + meter(got / most if most else 0.0, tone)
    plain = [f"{title}: {score}"]
    told: set[str] = set()
    for result in results:
        message = "As above." if result.message in told else result.message
        told |= {result.message} - {""}
        inside += _check_row(result, message)
        sign = "pass" if result.status == "passed" else "FAIL"
        points = f"{points_text(result.points)}/{points_text(result.max_points)}"
        plain.append(f"  {sign}  {points:>5}  {result.check}")
        if result.status != "passed":
            plain += [f"               {line}" for line in message.splitlines()]
    if note:
        inside += f'<div style="{MUTED}margin-top:6px;">{words(note)}</div>'
        plain.append(f"  {note}")
    return Rich(box(inside, tone), "\n".join(plain), data, value=f"{float(got)}")


def _check_row(result: CheckResult, message: str) -> str:
    passed = result.status == "passed"
    sign = badge("pass", "good") if passed else badge("not yet", "bad")
    points = f"{points_text(result.points)}/{points_text(result.max_points)}"
    row = (
        f'<div style="padding:3px 0;"><span style="{MUTED}float:right;">{points}</span>'
        f"{sign}&nbsp; {words(result.check)}</div>"
    )
    if passed:
        return row
    return row + (
        f'<div style="white-space:pre-wrap;border-left:2px solid {TONES["bad"]};'
        f'margin:2px 0 6px 8px;padding:0 10px;">{words(message)}</div>'
    )


def waiting_card(title: str, text: str, points: float = 0.0, data: dict | None = None) -> Rich:
    """Nothing to grade yet: grey, and no reproach."""
    right = score_text(0, points) if points else ""
    inside = heading(title, right) + f"<div>{words(text)}</div>"
    plain = f"{title}: {right}\n  {text}" if right else f"{title}\n  {text}"
    return Rich(box(inside, "wait"), plain, data, value="0.0" if points else None)
