"""The cards of a guess beside what was measured, and of a whole lab's score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minitrain.lab.drawing.cards import info_card, waiting_card
from minitrain.lab.drawing.display import (
    FONT,
    MUTED,
    RULE,
    TONES,
    Rich,
    badge,
    box,
    heading,
    meter,
    words,
)
from minitrain.lab.grading.checks import Graded
from minitrain.words import bytes_text, number_text, points_text, score_text, seconds_text


def with_unit(value: float | None, unit: str) -> str:
    """Bytes and seconds in their usual units, other numbers with theirs."""
    if value is None:
        return "–"
    if unit in ("B", "bytes"):
        return bytes_text(value)
    if unit in ("s", "seconds"):
        return seconds_text(value)
    return f"{number_text(value)} {unit}".strip()


def spoken(name: str) -> str:
    """A name as words: bytes_per_rank -> bytes per rank."""
    return name.replace("_", " ")


def sentence(text: str) -> str:
    """With a capital at its beginning."""
    return text[:1].upper() + text[1:]


def hidden_card(name: str) -> Rich:
    """In place of a measurement, until there is a guess to compare it with."""
    text = "Put your number in the cell above, run it, then run this one again."
    return waiting_card(f"{sentence(spoken(name))}: hidden until you guess", text)


def guess_card(
    name: str,
    guess: float,
    unit: str,
    measured: float | None = None,
    formula: float | None = None,
    note: str = "",
    data: dict[str, Any] | None = None,
) -> Rich:
    """A guess alone, or as bars beside the formula and the measurement."""
    title = spoken(name)
    if measured is None:
        shown = info_card(f"Your guess for {title}: {with_unit(guess, unit)}")
        return Rich(shown.html, shown.text, data)
    rows = [("your guess", guess), ("formula", formula), ("measured", measured)]
    rows = [(label, value) for label, value in rows if value is not None]
    verdict = f"your guess is {_distance(guess, measured)}"
    largest = max(abs(value) for _, value in rows) or 1.0
    inside = heading(sentence(title), verdict)
    for label, value in rows:
        tone = "info" if label == "your guess" else "good" if label == "measured" else "wait"
        inside += _bar_row(label, with_unit(value, unit), abs(value) / largest, tone)
    inside += f'<div style="{MUTED}margin-top:4px;">{words(note)}</div>' if note else ""
    plain = [
        f"{sentence(title)}: {verdict}",
        *(f"  {label}: {with_unit(v, unit)}" for label, v in rows),
    ]
    return Rich(box(inside, "info"), "\n".join([*plain, *([f"  {note}"] if note else [])]), data)


def _bar_row(label: str, value: str, share: float, tone: str) -> str:
    return (
        '<div style="padding:2px 0;">'
        f'<span style="float:right;font-weight:600;">{words(value)}</span>'
        f"{words(label)}{meter(share, tone)}</div>"
    )


def _distance(guess: float, measured: float) -> str:
    """How far off, as a factor where it is one."""
    if guess == measured:
        return "exactly right"
    if guess * measured <= 0:
        return f"off by {number_text(abs(guess - measured))}"
    factor = max(guess / measured, measured / guess)
    if factor < 1.005:
        return "within 0.5%"
    if factor < 1.5:
        return f"{100 * abs(guess / measured - 1):.0f}% {'above' if guess > measured else 'below'}"
    return f"{factor:.3g} times too {'large' if abs(guess) > abs(measured) else 'small'}"


def header_card(headline: str, path: Path) -> Rich:
    """A lab's first line where something was done already; unfolded, where that is kept."""
    text = f"Your progress is kept in `{path}`; `lab.reset()` starts this lab over."
    html = f"<details><summary>{words(headline)}</summary>{words(text)}</details>"
    return Rich(f'<div style="{FONT}">{html}</div>', f"{headline}\n  {text.replace('`', '')}")


def score_card(
    name: str, items: Sequence[type[Graded]], points: Mapping[str, Sequence[float]], read: str = ""
) -> Rich:
    """Points by exercise, experiment and question, and where to go now.

    `points`: name -> (best, of), as `LabProgress` keeps them.
    """
    best = {item.name: points.get(item.name, [0.0, 0.0])[0] for item in items}
    got, total = sum(best.values()), sum(item.max_points for item in items)
    score = score_text(got, total)
    tone = "good" if got >= total else "info"
    inside, plain = (
        heading(name, score) + meter(got / total if total else 0.0, tone),
        [f"{name}: {score}"],
    )
    for item in items:
        points = f"{points_text(best[item.name])}/{points_text(item.max_points)}"
        state, mark = _state(best[item.name], item.max_points)
        inside += (
            f'<div style="padding:3px 0;{RULE}"><span style="{MUTED}float:right;">{points}</span>'
            f"{badge(state, mark)}&nbsp; {words(item.title)}</div>"
        )
        plain.append(f"  {state:7}  {points:>7}  {item.title}")
    if read:
        text = f"Now read `{read}`: you have just written most of it."
        style = f"margin-top:8px;border-left:2px solid {TONES['info']};padding:0 10px;"
        inside += f'<div style="{style}">{words(text)}</div>'
        plain.append(f"  {text}")
    return Rich(box(inside, tone), "\n".join(plain))


def _state(best: float, most: float) -> tuple[str, str]:
    if best >= most:
        return "done", "good"
    return ("part", "info") if best > 0 else ("to do", "wait")
