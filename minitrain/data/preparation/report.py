"""The report of a preparation: the funnel as a picture and a table, the drops with samples.

Documents and bytes are conserved: what was read is what was dropped, for each reason, what was
trimmed from documents that stayed, and what is left.
"""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from minitrain.data.preparation.drops import Drops, add_drops
from minitrain.paths import write_atomically, write_bytes_atomically
from minitrain.words import bytes_text, printable


@dataclass
class Report:
    """Filled stage by stage; `funnel` is what was left after each."""

    settings: dict[str, Any]
    tokens: int
    vocab_size: int
    masked: int = 0  # e-mail addresses, numbers, keys
    trimmed: int = 0  # bytes, of documents that stayed
    documents: int = 0
    bytes: int = 0
    funnel: list[dict[str, Any]] = field(default_factory=list)
    dropped: Drops = field(default_factory=dict)

    def add_block(self, block: dict[str, Any]) -> None:
        """The counts of one block: what was read, and what its filters left."""
        if not self.funnel:
            self.funnel.append({"stage": "read", "documents": 0, "bytes": 0})
        for name in ("documents", "bytes"):
            self.funnel[0][name] += block["read"][name]
        lost = block["read"]["bytes"] - block["kept"]["bytes"]
        self.trimmed += lost - sum(own["bytes"] for own in block["dropped"].values())
        self.documents += block["kept"]["documents"]
        self.bytes += block["kept"]["bytes"]
        for reason, own in block["dropped"].items():
            add_drops(self.dropped, reason, own)

    def stage(self, name: str) -> None:
        self.funnel.append({"stage": name, "documents": self.documents, "bytes": self.bytes})

    def take(self, reason: str, own: dict[str, Any] | None, trimmed: int = 0) -> None:
        """A stage that drops for one reason, and trims what stays."""
        if own is not None:
            add_drops(self.dropped, reason, own)
            self.documents -= own["documents"]
            self.bytes -= own["bytes"]
        self.bytes -= trimmed
        self.stage(reason)


def write_report(out: Path, report: Report) -> None:
    """report.json, report.md and funnel.png, the same bytes for the same report."""
    write_bytes_atomically(out / "funnel.png", picture(report))
    write_atomically(out / "report.md", as_markdown(report))
    write_atomically(out / "report.json", json.dumps(asdict(report), indent=2) + "\n")


def as_markdown(report: Report) -> str:
    """Tables and samples."""
    read = report.funnel[0]
    lines = ["# What became of the documents", "", "![funnel](funnel.png)", ""]
    lines += ["| after | documents | of all | bytes | of all |", "|---|---:|---:|---:|---:|"]
    lines += [
        f"| {stage['stage']} | {stage['documents']:,} | {_share(stage, read, 'documents')} "
        f"| {bytes_text(stage['bytes'])} | {_share(stage, read, 'bytes')} |"
        for stage in report.funnel
    ]
    lines += [
        "",
        f"{report.tokens:,} tokens of a vocabulary of {report.vocab_size:,}, the ends of documents "
        f"included. {report.masked:,} private passages were masked; masks and cut lines took "
        f"{bytes_text(report.trimmed)} from documents that stayed.",
        "",
        "| dropped for | documents | of all | bytes |",
        "|---|---:|---:|---:|",
    ]
    ordered = sorted(report.dropped.items(), key=lambda pair: (-pair[1]["documents"], pair[0]))
    lines += [
        f"| {reason} | {own['documents']:,} | {_share(own, read, 'documents')} "
        f"| {bytes_text(own['bytes'])} |"
        for reason, own in ordered
    ]
    for reason, own in ordered:
        lines += ["", f"## {reason}", ""]
        for _, name, text in own["samples"]:
            lines += [f"- `{printable(name)}` {' '.join(printable(text).split())}"]
    return "\n".join(lines) + "\n"


def picture(report: Report) -> bytes:
    """A PNG: for each stage two bars, the share of the documents and of the bytes that is left."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    read = report.funnel[0]
    figure = Figure(figsize=(7, 0.7 + 0.6 * len(report.funnel)), layout="constrained")
    axes = figure.add_subplot()
    for row, stage in enumerate(report.funnel):
        for shift, name, colour in ((-0.18, "documents", "#4477aa"), (0.18, "bytes", "#ccbb44")):
            left = stage[name] / max(1, read[name])
            label = name if row == 0 else None
            axes.barh(row + shift, left, height=0.34, color=colour, label=label)
            amount = f"{stage[name]:,}" if name == "documents" else bytes_text(stage[name])
            axes.text(left + 0.01, row + shift, amount, va="center", fontsize=8)
    axes.set_yticks(range(len(report.funnel)), [stage["stage"] for stage in report.funnel])
    axes.set(xlim=(0, 1.2), xlabel="left, as a share of what was read")
    axes.invert_yaxis()
    axes.legend(loc="lower right", fontsize=8)
    data = io.BytesIO()
    FigureCanvasAgg(figure).print_png(data, metadata={"Software": None})
    return data.getvalue()


def _share(part: dict[str, Any], whole: dict[str, Any], name: str) -> str:
    return f"{part[name] / max(1, whole[name]):.1%}"
