"""Kinds and options that the commands of `plan` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from minitrain.apps.kinds import COUNT, PICTURE, Kind, one_of, real, whole
from minitrain.apps.options import Flag, Option
from minitrain.errors import InputError
from minitrain.model.config import PRESETS, preset
from minitrain.planning.hardware import chips
from minitrain.planning.money.prices import Price
from minitrain.planning.run import Model

BATCH_TOKENS = 4e6
TOKENS_PER_PARAMETER = 20  # Chinchilla's
USD = real(1e-4, 1e9)
GPUS = whole(1, 1_000_000)
CHIP = one_of("chip", chips)

ModelName = Annotated[str, Option(one_of("model preset", lambda: PRESETS), "The name of a preset.")]
ChipName = Annotated[str, Option(CHIP, "A name in data/hardware.csv.")]
Seq = Annotated[int, Option(whole(1, 10**8), "Tokens a sequence.")]
Batch = Annotated[int | None, Option(COUNT, "Sequences a step.", "4M tokens")]
Tokens = Annotated[float | None, Option(real(1, 1e18), "Tokens to train on.", "20 a parameter")]
Precision = Annotated[
    str, Option(one_of("precision", lambda: ("bf16", "fp16", "fp8")), "One of bf16, fp16 and fp8.")
]
Pue = Annotated[float, Option(real(1, 10), "Power of the site over that of its machines (PUE).")]
Carbon = Annotated[float, Option(real(0, 10_000), "Grams of CO2 a kWh.")]
Picture = Annotated[Path | None, Option(PICTURE, "Also draw it to a .png, .pdf or .svg file.")]
Json = Annotated[bool, Flag("Print JSON instead of tables.")]


def prices(source: str) -> Kind:
    """Dollars, or a range of them, whose geometric mean is the typical price."""

    def read(text: str) -> Price:
        low, _, high = text.partition("-")
        ends = USD.read(low), USD.read(high or low)
        if ends[0] > ends[1]:
            raise ValueError
        return Price(ends[0], (ends[0] * ends[1]) ** 0.5, ends[1], source)

    return Kind("LOW-HIGH", "dollars, 2.5, or a range with the lower end first, 2-4", read)


def shape_of(name: str) -> Model:
    """A preset of `model.config` as the planner's shape."""
    config = preset(name)
    return Model(
        config.layers, config.hidden_size, config.heads, config.kv_heads, config.ffn_size,
        config.vocab_size, gated=True, experts=config.experts,
        experts_per_token=config.experts_per_token if config.experts else 0,
        moe_ffn=config.expert_ffn_size if config.experts else 0,
        shared_experts=config.shared_experts, head_size=config.head_size, tied=config.tied,
        qkv_bias=config.qkv_bias, window=config.window,
    )  # fmt: skip


def save_figure(figure: object, file: Path) -> None:
    try:
        figure.savefig(file, dpi=150, facecolor="white")
    except OSError as error:
        raise InputError(f"{file} cannot be written ({error.strerror}): give another") from None
