"""Chips: peak figures (`data/hardware.csv`) and the share of them that training reaches.

Figures are dense (no sparsity), one way (not both), per chip, in SI units: FLOP/s, bytes, bytes/s,
watts. Elsewhere tables print sparse rates (2x), both directions (2x) or one link of several; the
notes in the file say where a source was converted.

Training gets less than the peak. Four constants per chip give the shares (`data/calibration.csv`),
fitted once over published runs on that chip, never to a single run:

    matmul      share of the peak rate that large matmuls hold (power limit, kernels, clocks)
    attention   the same for fused attention, its FLOPs counted in full though half is masked
    memory      share of the peak bandwidth that element-wise kernels hold
    kernel      seconds lost per kernel to launch, ramp and tail
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

from minitrain.errors import InputError, unknown_name
from minitrain.paths import data_dir


@dataclass(frozen=True)
class Constants:
    """The shares of its peaks that a chip sustains in training: the four listed above."""

    matmul: float
    attention: float
    memory: float
    kernel: float


@dataclass(frozen=True)
class Chip:
    name: str
    flops: tuple[tuple[str, float], ...]  # (precision, dense FLOP/s) for those supported
    memory: float | None  # bytes
    bandwidth: float | None  # bytes/s
    watts: float | None
    link: float | None  # bytes/s one way, all of the chip's links within a node together
    network: float | None  # bytes/s one way, its share of the node's network
    per_node: int
    fp8_share: float  # best FP8 matmuls' share of peak, relative to 16 bits' share
    constants: Constants
    calibrated: bool  # its constants were fitted; otherwise the nearest relative's are used

    def peak(self, precision: str) -> float:
        """FLOP/s of dense matmuls; an InputError for a precision that the chip lacks."""
        rates = dict(self.flops)
        if precision not in rates:
            raise InputError(
                f"precision is {precision}, which {self.name} has no matrix units for: "
                f"use {' or '.join(rates)}"
            )
        return rates[precision]


def read_table(file: str | os.PathLike) -> list[dict[str, str]]:
    """The rows of a CSV with a header; InputError if the file or the header is missing."""
    try:
        with Path(file).open(newline="", encoding="utf-8") as lines:
            return list(csv.DictReader(lines))
    except FileNotFoundError:
        raise InputError(f"{file} does not exist: give the path of a CSV file") from None
    except UnicodeDecodeError:
        raise InputError(f"{file} is not UTF-8 text: give a CSV file in UTF-8") from None


def number(row: dict[str, str], field: str, scale: float = 1.0) -> float | None:
    """A cell as a float times `scale`; None if empty."""
    text = (row.get(field) or "").strip()
    if not text:
        return None
    try:
        return float(text) * scale
    except ValueError:
        raise InputError(f"{field} is '{text}': a number is needed, or nothing") from None


@lru_cache
def chips() -> dict[str, Chip]:
    """All chips of the table by name."""
    fitted = {row["chip"]: row for row in read_table(data_dir() / "calibration.csv")}
    rows = read_table(data_dir() / "hardware.csv")
    return {row["chip"]: _chip(row, fitted) for row in rows}


def find_chip(name: str) -> Chip:
    if name not in chips():
        raise unknown_name("chip", name, chips())
    return chips()[name]


def _chip(row: dict[str, str], fitted: dict[str, dict[str, str]]) -> Chip:
    rates = {kind: number(row, f"{kind}_tflops", 1e12) for kind in ("fp16", "bf16", "fp8")}
    return Chip(
        name=row["chip"],
        flops=tuple((kind, rate) for kind, rate in rates.items() if rate),
        memory=number(row, "memory_GB", 1e9),
        bandwidth=number(row, "memory_TBps", 1e12),
        watts=number(row, "tdp_W"),
        link=number(row, "link_GBps", 1e9),
        network=number(row, "network_GBps", 1e9),
        per_node=int(number(row, "per_node") or 8),
        fp8_share=_fp8_share(row),
        constants=_constants(row, fitted),
        calibrated=row["chip"] in fitted,
    )


def _fp8_share(row: dict[str, str]) -> float:
    """The FP8 share of the best measured matmuls, or the median over other chips."""
    best = [number(row, f"matmul_{kind}_tflops") for kind in ("fp8", "bf16")]
    peak = [number(row, f"{kind}_tflops") for kind in ("fp8", "bf16")]
    return best[0] / peak[0] / (best[1] / peak[1]) if all(best + peak) else 0.95


def _constants(row: dict[str, str], fitted: dict[str, dict[str, str]]) -> Constants:
    """The chip's own if runs on it were fitted; else the default row's, scaled by its best matmul.

    The best measured matmul (mamf-finder) over the chip's peak bounds what kernels and clocks
    reach; training gets a share of that, which the default row takes from calibrated chips.
    """
    chosen = fitted.get(row["chip"], fitted["default"])
    values = {field.name: number(chosen, field.name) for field in fields(Constants)}
    best, peak = number(row, "matmul_bf16_tflops"), number(row, "bf16_tflops")
    if row["chip"] not in fitted and best and peak:
        for name in ("matmul", "attention"):
            values[name] *= best / peak / number(fitted["default"], "best_over_peak")
    return Constants(**values)
