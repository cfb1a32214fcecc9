"""The charts of a run, chosen by what it recorded; one list for the page and for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from minitrain.apps.watch import svg
from minitrain.apps.watch.history import History
from minitrain.apps.watch.svg import BLUE, HUES, ORANGE
from minitrain.monitoring.metrics import BETWEEN, COMMUNICATION, PARTS
from minitrain.words import bytes_text, memory_text, number_text, seconds_text

NOW_AND_THEN = ("evaluation", "checkpoint")  # would dwarf the parts of a step
ORDER = tuple(part for part in (*PARTS, COMMUNICATION, BETWEEN) if part not in NOW_AND_THEN)
STRAGGLER = 1.1  # times the median: where the line among the ranks is drawn


@dataclass(frozen=True)
class Panel:
    id: str
    title: str
    value: str  # now
    key: list[tuple[str, str]]  # name and hue, where there are several
    picture: str  # SVG


def _loss(history: History) -> Panel | None:
    loss, held_out = history.curves["loss"].seen(), history.curves["held_out"].seen()
    if not loss:
        return None
    floor = history.newest[0].get("floor")
    key = [("loss", BLUE)]
    if held_out:
        key.append(("held out", ORANGE))
    if floor:
        key.append((f"floor {floor:.3f}", ""))
    now = number_text(history.newest[0].get("loss"))
    words = f"loss, {number_text(loss[0].mean)} at first, {now} now"
    drawn = [("loss", BLUE, loss), ("held out", ORANGE, held_out)]
    return Panel("loss", "Loss, nats a token", now, key, svg.lines(drawn, words, floor))


def _curve(history: History, name: str, title: str, text: Any, log: bool = False) -> Panel | None:
    points = history.curves[name].seen()
    if not points or (name == "sent_bytes" and not any(point.high for point in points)):
        return None
    newest = history.newest[0]
    value = text(newest[name])
    emulated = name.startswith("gpu_") and newest.get("gpu_is_emulated")
    title = f"{title} (an emulated H100)" if emulated else title
    words = f"{title}: {value} now, {text(min(p.low for p in points))} to "
    words += text(max(p.high for p in points))
    return Panel(name, title, value, [], svg.lines([(name, BLUE, points)], words, log=log))


def _parts(history: History) -> Panel | None:
    parts = [name for name in ORDER if name in history.parts]
    if not parts:
        return None
    hues = {name: HUES[place % len(HUES)] for place, name in enumerate(parts)}
    series = [(name, hues[name], history.parts[name].seen()) for name in parts]
    newest = {name: history.newest[0]["parts"].get(name, 0.0) for name in parts}
    largest = max(newest, key=newest.__getitem__)
    words = f"seconds of a step by part, without evaluations and saves; the largest is {largest}"
    key = [(name, hues[name]) for name in parts]
    value = seconds_text(sum(newest.values()))
    return Panel("parts", "Seconds of a step, by part", value, key, svg.stack(series, words))


def _ranks(history: History) -> Panel | None:
    """Compute time of each rank before it waits for the others, which shows a straggler."""
    samples = sorted(history.newest.items())
    values = {rank: s["compute_seconds"] for rank, s in samples if "compute_seconds" in s}
    if len(values) < 2:
        return None
    level = STRAGGLER * median(values.values())
    slow = [str(rank) for rank, value in values.items() if value > level]
    words = "seconds that each rank computes; " + (
        f"over {STRAGGLER} times the median: rank {', '.join(slow)}" if slow else "none stands out"
    )
    key = [(f"{STRAGGLER} x the median", "")] + ([("over it", ORANGE)] if slow else [])
    value = f"{len(values)} ranks"
    return Panel("ranks", "Compute of each rank, s", value, key, svg.bars(values, words, level))


MAKERS: dict[str, Callable[[History], Panel | None]] = {  # in the order of the page
    "loss": _loss,
    "grad_norm": lambda h: _curve(h, "grad_norm", "Gradient norm", number_text, log=True),
    "tokens_per_second": lambda h: _curve(
        h, "tokens_per_second", "Tokens a second", lambda v: f"{v:,.0f}"
    ),
    "parts": _parts,
    "ranks": _ranks,
    "memory_bytes": lambda h: _curve(h, "memory_bytes", "Memory of rank 0", memory_text),
    "sent_bytes": lambda h: _curve(h, "sent_bytes", "Sent a step by rank 0", bytes_text),
    "gpu_power_watts": lambda h: _curve(h, "gpu_power_watts", "Power", lambda v: f"{v:,.0f} W"),
    "gpu_temperature_celsius": lambda h: _curve(
        h, "gpu_temperature_celsius", "Temperature", lambda v: f"{v:.1f} °C"
    ),
}


def panels(history: History) -> list[Panel]:
    """The panels that the run has data for."""
    made = (make(history) for make in MAKERS.values())
    return [panel for panel in made if panel is not None]
