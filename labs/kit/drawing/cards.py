"""Cards for the learner: results of checks, a guess beside its measurement, the score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrain.lab.drawing.card import Card, Line
from minitrain.lab.drawing.display import FONT, Rich, words
from minitrain.lab.grading.checks import Graded
from minitrain.words import bytes_text, number_text, points_text, score_text, seconds_text

if TYPE_CHECKING:
    from minitrain.lab.grading.results import CheckResult


def grade_card(
    title: str, results: Sequence[CheckResult], note: str = "", data: dict[str, Any] | None = None
) -> Rich:
    """Every check with its points; under each failure, the message that helps fix it."""
    got, most = sum(r.points for r in results), sum(r.max_points for r in results)
    waits = all(result.status in ("passed", "withheld") for result in results)
    tone = "good" if got >= most else "wait" if waits else "bad"
    share = got / most if most else 0.0
    card = Card(title, score_text(got, most), tone, share, list(_check_lines(results)), note)
    return card.rich(data, value=f"{float(got)}")


def _check_lines(results: Sequence[CheckResult]) -> Iterator[Line]:
    """A line for each check; a message that repeats is shown once."""
    shown: set[str] = set()
    for result in results:
        points = f"{points_text(result.points)}/{points_text(result.max_points)}"
        if result.status == "passed":
            yield Line(result.check, points, "pass", "good")
            continue
        message = "As above." if result.message in shown else result.message
        shown |= {result.message} - {""}
        badge, tone = ("waits", "wait") if result.status == "withheld" else ("not yet", "bad")
        yield Line(result.check, points, badge, tone, message)


def waiting_card(title: str, text: str, points: float = 0.0) -> Rich:
    """A neutral grey card: nothing to grade yet."""
    score = score_text(0, points) if points else ""
    return Card(title, score, "wait", note=text).rich(value="0.0" if points else None)


def hidden_card() -> Rich:
    """Placeholder for a measurement until there is a guess to compare."""
    text = "Put your number in the cell above, run it, then run this one again."
    return waiting_card("What was found: hidden until you guess", text)


def guess_card(guess: float, unit: str, data: dict[str, Any]) -> Rich:
    """A guess alone, stored in `data`."""
    return Card(f"Your guess: {with_unit(guess, unit)}").rich(data)


def revealed_card(unit: str, numbers: Mapping[str, float | None], note: str) -> Rich:
    """Guess, formula (None: no formula) and measurement, in this order, as bars."""
    (guess, *_, found), tones = numbers.values(), ("info", "wait", "good")
    largest = max(abs(value) for value in numbers.values() if value is not None) or 1.0
    lines = [
        Line(label, with_unit(value, unit), tone=tone, share=abs(value) / largest)
        for (label, value), tone in zip(numbers.items(), tones)
        if value is not None
    ]
    distance = f"your guess is {_distance(guess, found, unit)}"
    return Card("Your guess and what was found", distance, lines=lines, note=note).rich()


def _distance(guess: float, measured: float, unit: str) -> str:
    """The error of a guess, as a factor where suitable."""
    if guess == measured:
        return "exactly right"
    if guess * measured <= 0:
        return f"off by {with_unit(abs(guess - measured), unit)}"
    factor = max(guess / measured, measured / guess)
    if factor < 1.005:
        return "within 0.5%"
    if factor < 1.5:
        return f"{100 * abs(guess / measured - 1):.0f}% {'above' if guess > measured else 'below'}"
    return f"{factor:.3g} times too {'large' if abs(guess) > abs(measured) else 'small'}"


def score_card(
    name: str, items: Sequence[type[Graded]], points: Mapping[str, Sequence[float]], read: str = ""
) -> Rich:
    """Points by exercise, experiment and question, and the next step.

    points: name -> (best, of), as `LabProgress` keeps them.
    """
    best = {item.name: points.get(item.name, [0.0, 0.0])[0] for item in items}
    got, total = sum(best.values()), sum(item.max_points for item in items)
    lines = [
        Line(
            item.title,
            f"{points_text(best[item.name])}/{points_text(item.max_points)}",
            *_state(best[item.name], item.max_points),
        )
        for item in items
    ]
    tone, share = "good" if got >= total else "info", got / total if total else 0.0
    written = [best[item.name] >= item.max_points for item in items if item.kind == "exercise"]
    note = f"Now read `{read}`: what you have built is at work there."
    if not all(written):
        note = f"{sum(written)} of {len(written)} exercises are yours; then read `{read}`."
    note = note if read else ""
    return Card(name, score_text(got, total), tone, share, lines, note).rich()


def _state(best: float, most: float) -> tuple[str, str]:
    if best >= most:
        return "done", "good"
    return ("part", "info") if best > 0 else ("to do", "wait")


def header_card(headline: str, path: Path) -> Rich:
    """A lab's headline once it has progress; unfolds to the progress file's path."""
    text = f"Your progress is kept in `{path}`; `lab.reset()` starts this lab over."
    html = f"<details><summary>{words(headline)}</summary>{words(text)}</details>"
    return Rich(f'<div style="{FONT}">{html}</div>', f"{headline}\n  {text.replace('`', '')}")


def with_unit(value: float, unit: str) -> str:
    """Bytes and seconds in their usual units, shares in percent, other numbers with the given
    unit."""
    if unit in ("B", "bytes"):
        return bytes_text(value)
    if unit in ("s", "seconds"):
        return seconds_text(value)
    if unit == "share":
        value, unit = 100 * value, "%"
    return f"{_rounded(value)}{'' if unit == '%' else ' '}{unit}".strip()


def _rounded(value: float) -> str:
    """To three digits; integers in full, below a billion."""
    for size, word in ((1e12, "trillion"), (1e9, "billion")):
        if size <= abs(value) < 1000 * size:
            return f"{value / size:.3g} {word}"
    return number_text(value if value == int(value) else float(f"{value:.3g}"))
