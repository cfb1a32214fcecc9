"""Memory of one device for full fine-tuning, LoRA or QLoRA, in closed form.

    P parameters, M of them in the blocks' matrices; A in adapters of rank r

                weights                 gradients   optimizer
    full        2 P                     2 P         12 P     float32 weights and Adam's two means
    LoRA        2 P + 2 A               2 A         12 A     A = sum over matrices of r (in + out)
    QLoRA       b/8 M + 2 (P - M) + 2 A 2 A         12 A     b = 4.127: NF4, double quantization

The base's activations are the same in all three: frozen weights still pass gradients on. They are
counted with block-wise recomputation, as in QLoRA (Chen et al. 2016). Embedding, norms and head
stay in 16 bits. Papers: Hu et al. 2021 (arXiv:2106.09685); Dettmers et al. 2023 (arXiv:2305.14314);
bytes a parameter: planning/step/memory.py. Lab: e07.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minitrain.errors import InputError
from minitrain.measure.parameters import (
    Shape,
    attention_weights,
    mlp_weights,
    parameter_count,
)
from minitrain.measure.predicted_memory import predicted_activations
from minitrain.planning.step.memory import ZERO_PAPER, StateBytes

NF4_DOUBLE = 4 + 8 / 64 + 32 / (64 * 256)  # bits a weight


@dataclass(frozen=True)
class Tuning:
    """`rank` None is full fine-tuning; `base_bits`: bits per weight of the blocks' matrices."""

    rank: int | None = None
    base_bits: float = 16.0

    def __post_init__(self) -> None:
        if self.rank is None and self.base_bits != 16:
            raise InputError(
                f"matrices of {self.base_bits:g} bits are not trained themselves: give a rank, 16 "
                "for one, so that an adapter is"
            )
        if (self.rank is not None and self.rank < 1) or not 0 < self.base_bits <= 64:
            raise InputError(
                f"rank {self.rank} over {self.base_bits:g} bits: give a rank of 1 or more, and "
                "over 0 to 64 bits"
            )


FULL = Tuning()
LORA = Tuning(rank=16)
QLORA = Tuning(rank=16, base_bits=NF4_DOUBLE)


@dataclass(frozen=True)
class TuningMemory:
    """Bytes by category."""

    base: float
    adapter: float  # the adapter's weights
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        return self.base + self.adapter + self.gradients + self.optimizer + self.activations


def tuning_memory(
    shape: Shape, tuning: Tuning, batch: int = 1, length: int = 512, per: StateBytes = ZERO_PAPER
) -> TuningMemory:
    """Bytes at the peak of a step over `batch` sequences of `length` tokens on one device."""
    if shape.experts:
        raise InputError(
            f"a mixture of {shape.experts} experts is fine-tuned in other ways: give a dense model"
        )
    parameters, matrices = parameter_count(shape), block_matrices(shape)
    adapter = 0 if tuning.rank is None else adapter_parameters(shape, tuning.rank)
    trained = adapter if tuning.rank else parameters
    frozen_bytes = tuning.base_bits / 8 * matrices + per.weights * (parameters - matrices)
    return TuningMemory(
        base=frozen_bytes,
        adapter=per.weights * adapter,
        gradients=per.gradients * trained,
        optimizer=per.optimizer * trained,
        activations=predicted_activations(shape, batch, length, torch.bfloat16, recompute="full"),
    )


def block_matrices(shape: Shape) -> int:
    """M: the weights of all blocks' linear layers in a dense model."""
    return shape.layers * (attention_weights(shape) + mlp_weights(shape, shape.ffn_size))


def adapter_parameters(shape: Shape, rank: int) -> int:
    """A: an adapter of this rank on each of a block's linear layers."""
    width, ffn = shape.hidden_size, shape.ffn_size
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    attention = 2 * (width + queries) + 2 * (width + keys)
    mlp = (3 if shape.gated else 2) * (width + ffn)
    return shape.layers * rank * (attention + mlp)
