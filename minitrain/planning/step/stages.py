"""The cut of a model into the v·p stages of a pipeline: the layers of each.

Stage c·p + r is chunk c of rank r. The embedding is in the first stage, the head in the last. Where
the layers do not divide evenly the ends get fewer, since they have embedding and head as well:
Llama 3's 126 layers over 128 stages leave one out at either end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from minitrain.parallel.pipeline.schedules import split_layers
from minitrain.planning.run import Run


@dataclass(frozen=True)
class StageLayers:
    """`dense` and `mixture` layers, and whether the embedding or the head is here."""

    dense: int
    mixture: int
    first: bool
    last: bool

    @property
    def layers(self) -> int:
        return self.dense + self.mixture


def stages_of(run: Run) -> tuple[StageLayers, ...]:
    """All v·p stages in the order in which a token passes them."""
    return split_stages(run.model.layers, run.model.moe_layers, run.plan.pp * run.plan.vpp)


@lru_cache(maxsize=4096)
def split_stages(layers: int, mixture: int, stages: int) -> tuple[StageLayers, ...]:
    """The dense layers of a mixture come first."""
    counts = split_layers(layers, stages)
    dense_left = layers - mixture
    found = []
    for i, count in enumerate(counts):
        dense = min(dense_left, count)
        dense_left -= dense
        found.append(StageLayers(dense, count - dense, i == 0, i == len(counts) - 1))
    return tuple(found)


def chunks_of_rank(run: Run, rank: int) -> Iterator[StageLayers]:
    """The stages that pipeline rank `rank` holds."""
    yield from stages_of(run)[rank :: run.plan.pp]
