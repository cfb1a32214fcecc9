"""A Llama-family Transformer: a residual stream, one vector a token, to which L blocks add.

    x = embed(tokens)
    x = x + attention(norm(x))            tokens read each other         } L times
    x = x + down(silu(gate(n))·up(n))     token by token, n = norm(x)    }
    logits = head(norm(x))

Cost a token: 2 FLOPs a matrix parameter forward and 4 backward, plus attention's.
If the configuration has experts, mixtures replace the MLPs (experts/moe.py).
Papers: Vaswani et al., arXiv 1706.03762; LLaMA, 2302.13971. Lab: e01.
Shapes: B batch  T tokens  D width  V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.model.attention.grouped_query import Attention, Kernel, attention_mask
from minitrain.model.attention.mask import Mask
from minitrain.model.config import ModelConfig
from minitrain.model.experts.moe import MoE
from minitrain.model.mlp import MLP
from minitrain.model.norm import RMSNorm
from minitrain.model.rope import Rotation, document_positions, rotation


class Block(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = MoE(config) if config.experts else MLP(config)

    def forward(self, x: Tensor, turns: Rotation, mask: Tensor | Mask | None = None) -> Tensor:
        """x (B, T, D) -> (B, T, D)."""
        x = x + self.attention(self.attention_norm(x), turns, mask)
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """Two replaceable functions: `look_around` makes rotation and mask, `stack` runs the blocks.

    They are replaced for kernels with other masks (`exchange_attention`), for an x that is a part
    of a sequence, and for blocks that are recomputed.
    """

    end_tokens: tuple[int, ...] = ()  # end generation, if the checkpoint names them

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.sequence_ranks = 1  # number of ranks that the stream's tokens are split over
        self.look_around = partial(look_around, config, attention_mask)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.stack: Stack = one_after_another
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie()
        initialise(self)

    def forward(
        self, tokens: Tensor, documents: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """tokens (B, T) int64 -> logits (B, T, V).

        documents (B, T) numbers the documents packed into a row: a token then reads only its own,
        and positions start from 0 in each. positions (T,) or (B, T) override that.
        """
        x = self.embed(tokens)  # (B, T, D)
        turns, mask = self.surroundings(x, documents, positions)
        x = self.stack(self.blocks, x, turns, mask)
        return self.head(self.norm(x))  # (B, T, V)

    def surroundings(
        self, x: Tensor, documents: Tensor | None = None, positions: Tensor | None = None
    ) -> tuple[Rotation, Tensor | Mask | None]:
        """The inputs that all blocks share besides x (B, T, D): rotation and mask."""
        return self.look_around(all_tokens(x, self.sequence_ranks), documents, positions)

    def tie(self) -> None:
        """Makes head and embedding one parameter, if the configuration says so."""
        if self.config.tied:
            self.head.weight = self.embed.weight


# ---- the two functions: rotation and mask, and the order of the blocks ----

MaskMaker = Callable[[Tensor, "Tensor | None", "int | None"], "Tensor | Mask | None"]


def look_around(
    config: ModelConfig,
    make_mask: MaskMaker,
    x: Tensor,
    documents: Tensor | None = None,
    positions: Tensor | None = None,
) -> tuple[Rotation, Tensor | Mask | None]:
    """The rotation of each token of x (B, T, D), and the mask as the kernel wants it."""
    if positions is None and documents is not None:
        positions = document_positions(documents)  # (B, T)
    elif positions is None:
        positions = torch.arange(x.shape[1], device=x.device)  # (T,)
    return rotation(config, positions, x.dtype), make_mask(x, documents, config.window)


def all_tokens(x: Tensor, ranks: int) -> Tensor:
    """x (B, T/N, D), on one of N ranks that share a sequence -> (B, T, D), all its first token.

    Attention still reads all T tokens, and `look_around` only needs their number.
    """
    return x[:, :1].expand(-1, x.shape[1] * ranks, -1)


Stack = Callable[[Iterable[nn.Module], Tensor, Rotation, "Tensor | Mask | None"], Tensor]


def one_after_another(
    blocks: Iterable[nn.Module], x: Tensor, turns: Rotation, mask: Tensor | Mask | None
) -> Tensor:
    """x (B, T, D) -> (B, T, D)."""
    for block in blocks:
        x = block(x, turns, mask)
    return x


def exchange_attention(model: Transformer, kernel: Kernel, make_mask: MaskMaker) -> Transformer:
    """Replaces the kernel in every block, and the mask by one that it reads. Returns the model.

    `exchange_attention(model, tiled_attention, Mask.of)`, and back: (attention, attention_mask).
    """
    if not isinstance(model.look_around, partial):
        raise InputError(
            "learned tokens precede this model's sequence, and another kernel would lose them: "
            "exchange the attention first, and adapt(...) after it"
        )
    for block in model.blocks:
        block.attention.kernel = kernel
    model.look_around = partial(look_around, model.config, make_mask)
    return model


# ---- building ----


def empty(
    config: ModelConfig, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Transformer:
    """A model with uninitialized weights. No memory is touched, so it is instant."""
    with torch.device("meta"):
        model = Transformer(config)
    model = model.to(dtype).to_empty(device=device)
    model.tie()  # leaving the meta device untied them
    for buffer in model.buffers():
        buffer.zero_()
    return model


def build(
    config: ModelConfig,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Transformer:
    """A new model; a seed gives the same weights on every device and, rounded, in every dtype."""
    model = empty(config, device, dtype)
    initialise(model, torch.Generator().manual_seed(seed))
    return model


@torch.no_grad()
def initialise(model: Transformer, generator: torch.Generator | None = None) -> None:
    """Norms 1, biases 0, matrices normal with std sqrt(2/5D): 0.02 at GPT-2's widths, more in
    narrower models (Nguyen and Salazar, arXiv 1910.05895). The 2L matrices that write to the stream
    are scaled by 1/sqrt(2L), so that the stream does not grow with depth (GPT-2)."""
    std = math.sqrt(2 / (5 * model.config.hidden_size))
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            continue
        if parameter.dim() == 1:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        adds = name.endswith(("attention.o.weight", "down.weight", "experts.down"))
        scale = std / math.sqrt(2 * model.config.layers) if adds else std
        parameter.copy_(torch.randn(parameter.shape, generator=generator, device="cpu") * scale)
