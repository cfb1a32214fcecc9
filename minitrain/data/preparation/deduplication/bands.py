"""LSH bands: K hashes cut into b bands of r rows; two documents are a pair where a whole band
agrees.

    P(a pair of Jaccard similarity s meets) = 1 - (1 - s^r)^b        the S-curve

      1 |            .----     more rows: further right and steeper (fewer chance meetings)
        |          /           more bands: further left (fewer misses)
        |        /
      0 |______.'_________     about (1/b)^(1/r) is where it passes a half
                t         1

`choose_bands` takes the split whose curve errs least from a step at t: the area of false positives
below t plus that of misses above it, each with its weight.
Sources: Indyk and Motwani 1998; Leskovec et al., Mining of Massive Datasets, section 3.4. FineWeb
(2406.17557) takes 14 bands of 8 rows, near 0.75.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minitrain.errors import InputError

POINTS = 1000  # at which the areas are summed


@dataclass(frozen=True)
class Bands:
    """`bands` of `rows` hashes each."""

    bands: int
    rows: int

    def __post_init__(self) -> None:
        if self.bands < 1 or self.rows < 1:
            raise InputError(f"{self.bands} bands of {self.rows} rows: use 1 or more of each")

    @property
    def hashes(self) -> int:
        return self.bands * self.rows

    def meeting_probability(self, similarity: float | np.ndarray) -> float | np.ndarray:
        """1 - (1 - s^r)^b, of numbers in [0, 1]."""
        return 1 - (1 - similarity**self.rows) ** self.bands


def choose_bands(
    threshold: float, hashes: int = 128, miss_weight: float = 0.5, most_rows: int = 64
) -> Bands:
    """The split of at most `hashes` hashes that errs least from a step at `threshold`.

    `miss_weight` in [0, 1]: what a missed pair weighs, against 1 minus it for a false one.
    """
    if not 0 < threshold < 1:
        raise InputError(f"a threshold of {threshold} parts nothing: give one between 0 and 1")
    if hashes < 1 or not 0 <= miss_weight <= 1:
        raise InputError(
            f"{hashes} hashes, a miss's weight of {miss_weight}: use 1 or more, and 0 to 1"
        )
    splits = [
        Bands(bands, rows)
        for rows in range(1, min(hashes, most_rows) + 1)
        for bands in range(1, hashes // rows + 1)
    ]
    return min(splits, key=lambda split: _error(split, threshold, miss_weight))


def _error(split: Bands, threshold: float, miss_weight: float) -> float:
    """The two areas, by the midpoint rule."""
    middles = (np.arange(POINTS) + 0.5) / POINTS
    met = split.meeting_probability(middles)
    false = met[middles < threshold].sum()
    missed = (1 - met[middles >= threshold]).sum()
    return float((1 - miss_weight) * false + miss_weight * missed) / POINTS
