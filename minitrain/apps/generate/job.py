"""The options of one call of `generate`."""

from __future__ import annotations

from dataclasses import dataclass

from minitrain.inference.parameters import SamplingParameters


@dataclass(frozen=True)
class Job:
    """`new_tokens` None: 128, or as many as the model can read."""

    model: str
    prompts: list[str | None]  # None: from the beginning of a text
    parameters: SamplingParameters
    new_tokens: int | None
    samples: int
    device: str | None
