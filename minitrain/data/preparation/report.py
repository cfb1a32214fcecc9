"""The report of a preparation: the funnel as a picture and a table, the drops with samples.

Documents and bytes are conserved: input = drops, by reason + text trimmed from documents that
stayed + output.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minitrain.data.preparation.deduplication.exact import digest
from minitrain.data.preparation.documents import Row
from minitrain.data.preparation.private import mask
from minitrain.paths import write_atomically, write_bytes_atomically
from minitrain.words import bytes_text, printable

SAMPLES, SAMPLE_CHARACTERS = 3, 240  # samples per reason, characters per sample
FILTERS, EXACT, NEAR = "filters", "exact_duplicate", "near_duplicate"
EMPTY = "nothing_but_repeats"


@dataclass(frozen=True)
class Report:
    """`funnel` counts what is left after each stage; `dropped` counts drops by reason."""

    settings: dict[str, Any]
    tokens: int
    vocab_size: int
    masked: int  # e-mail addresses, numbers, keys
    trimmed: int  # bytes, from documents that stayed
    funnel: list[dict[str, Any]]
    dropped: dict[str, dict[str, Any]]


def make_report(rows: Iterable[Row], settings: dict[str, Any], tokens: int, vocab: int) -> Report:
    """Counts all rows that were read, in one pass.

    Each has its final `text`, or a sample of it with the reason it was `dropped`, and its bytes as
    `read` and as `left` by the filters.
    """
    read, masked, dropped = Counter(), 0, {}
    lost = {stage: Counter() for stage in (FILTERS, EXACT, NEAR, EMPTY)}  # documents, and bytes
    for row in rows:
        read.update(documents=1, bytes=row["read"])
        masked += row.get("masked", 0)
        trimmed = row["read"] - row["left"]
        lost[FILTERS].update(bytes=trimmed)
        if reason := row["dropped"]:
            lost[reason if reason in lost else FILTERS].update(documents=1, bytes=row["left"])
            _add(dropped.setdefault(reason, {"documents": 0, "bytes": 0, "samples": []}), row)
        else:
            lost[EMPTY].update(bytes=row["left"] - size_bytes(row["text"]))
    funnel, left = [{"stage": "read", **read}], read
    for stage in lost if settings["passages"] else (FILTERS, EXACT, NEAR):
        left = {name: left[name] - lost[stage][name] for name in ("documents", "bytes")}
        funnel.append({"stage": stage, **left})
    trimmed = read["bytes"] - left["bytes"] - sum(own["bytes"] for own in dropped.values())
    return Report(settings, tokens, vocab, masked, trimmed, funnel, dropped)


def _add(own: dict[str, Any], row: Row) -> None:
    """Adds one drop. Keeps the samples with the lowest digests: an unbiased choice that does not
    depend on how the documents were cut into blocks."""
    own["documents"] += 1
    own["bytes"] += row["left"]
    sample = [digest(row["id"] + row["text"]).hex(), row["id"], row["text"]]
    own["samples"] = sorted([*own["samples"], sample])[:SAMPLES]


def sample(text: str) -> str:
    """The beginning of a text, masked, since many may read a report."""
    return mask(text[: 4 * SAMPLE_CHARACTERS])[:SAMPLE_CHARACTERS]  # a cut key would stay


def size_bytes(text: str) -> int:
    """Size in UTF-8."""
    return len(text.encode("utf-8", "surrogatepass"))


def write_report(out: Path, report: Report) -> None:
    """report.json, report.md and funnel.png, the same bytes for the same report."""
    write_bytes_atomically(out / "funnel.png", picture(report))
    write_atomically(out / "report.md", as_markdown(report))
    write_atomically(out / "report.json", json.dumps(asdict(report), indent=2) + "\n")


def as_markdown(report: Report) -> str:
    """The report as Markdown tables and samples."""
    read = report.funnel[0]
    ordered = sorted(report.dropped.items(), key=lambda pair: (-pair[1]["documents"], pair[0]))
    lines = [
        *("# What became of the documents", "", "![funnel](funnel.png)", ""),
        *_table("after", [(stage["stage"], stage) for stage in report.funnel], read),
        "",
        f"{report.tokens:,} tokens of a vocabulary of {report.vocab_size:,}, the ends of documents "
        f"included. {report.masked:,} private passages were masked; masks and cut lines took "
        f"{bytes_text(report.trimmed)} from documents that stayed.",
        "",
        *_table("dropped for", ordered, read),
    ]
    for reason, own in ordered:
        lines += ["", f"## {reason}", ""]
        for _, name, text in own["samples"]:
            lines += [f"- `{printable(name)}` {' '.join(printable(text).split())}"]
    return "\n".join(lines) + "\n"


def _table(head: str, rows: Iterable[tuple[str, dict]], read: dict[str, Any]) -> list[str]:
    lines = [f"| {head} | documents | of all | bytes | of all |", "|---|---:|---:|---:|---:|"]
    for name, own in rows:
        documents, size = (own[n] / max(1, read[n]) for n in ("documents", "bytes"))
        counts = f"{own['documents']:,} | {documents:.1%} | {bytes_text(own['bytes'])}"
        lines.append(f"| {name} | {counts} | {size:.1%} |")
    return lines


def picture(report: Report) -> bytes:
    """A PNG with two bars per stage: shares of the documents and of the bytes left."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    read = report.funnel[0]
    figure = Figure(figsize=(7, 0.7 + 0.6 * len(report.funnel)), layout="constrained")
    axes = figure.add_subplot()
    rows = range(len(report.funnel))
    for shift, name, colour in ((-0.18, "documents", "#4477aa"), (0.18, "bytes", "#ccbb44")):
        left = [stage[name] / max(1, read[name]) for stage in report.funnel]
        bars = axes.barh([row + shift for row in rows], left, 0.34, color=colour, label=name)
        amount = "{:,}".format if name == "documents" else bytes_text
        axes.bar_label(bars, [amount(s[name]) for s in report.funnel], padding=3, fontsize=8)
    axes.set_yticks(rows, [stage["stage"] for stage in report.funnel])
    axes.set(xlim=(0, 1.2), xlabel="left, as a share of what was read")
    axes.invert_yaxis()
    axes.legend(loc="lower right", fontsize=8)
    data = io.BytesIO()
    FigureCanvasAgg(figure).print_png(data, metadata={"Software": None})
    return data.getvalue()
