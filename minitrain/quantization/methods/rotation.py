"""Rotation: spreads each outlier over all channels, so that none stands out.

The residual stream x (T, D) may be rotated if every reader undoes it: with Q orthogonal, R of a
head's size,

    embed Q     q, k, v, gate, up, head: W Q     o, down: Q^T W        the stream
    v: (I ⊗ R)^T W                                o: W (I ⊗ R)          within each head

RMSNorm's x/rms(x) is invariant; its weights, which are not, are first folded into the matrices
after it. A tied head then differs from the embedding, and gets its own matrix. Q = diag(±1) H with
a Hadamard matrix H of ±1/√D: an outlier of size a becomes D numbers of size a/√D.
Paper: Ashkboos et al. 2024, QuaRot (arXiv:2404.00456), stages 1a and 1b; its online rotations for
4-bit activations are not implemented. Shapes: D width.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from minitrain.model.transformer import Transformer
from minitrain.quantization.methods.scales import check_float, junctions

READERS = ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")
WRITERS = ("attention.o", "mlp.down")


@torch.no_grad()
def rotate(model: Transformer, seed: int = 0) -> Transformer:
    """In place; logits are unchanged up to rounding. A tied head becomes its own matrix."""
    check_float(model)
    config, device = model.config, model.embed.weight.device
    generator = torch.Generator().manual_seed(seed)
    q = random_rotation(config.hidden_size, generator).to(device)
    r = random_rotation(config.head_size, generator).to(device)
    r = torch.block_diag(*[r] * config.heads)
    untie(model)
    absorb_norms(model)
    _set(model.embed, model.embed.weight.double() @ q)
    _set(model.head, model.head.weight.double() @ q)
    for block in model.blocks:
        readers, writers = (
            [block.get_submodule(name) for name in names] for names in (READERS, WRITERS)
        )
        for linear in readers:
            _set(linear, linear.weight.double() @ q)
        for linear in writers:
            _set(linear, q.t() @ linear.weight.double())
        rotate_heads(block.attention, r)
    return model


def rotate_heads(attention: nn.Module, r: Tensor) -> None:
    """r (H·C, H·C): the same rotation in each head; the K value heads use K of its blocks."""
    v, o = attention.v, attention.o
    values = r[: v.out_features, : v.out_features]
    _set(v, values.t() @ v.weight.double())
    if v.bias is not None:
        v.bias.copy_(values.t() @ v.bias.double())
    _set(o, o.weight.double() @ r)


def absorb_norms(model: Transformer) -> None:
    """Folds each norm's weight into its consumers, and sets it to 1."""
    for block in model.blocks:
        for junction in junctions(block):
            if junction.after_norm:
                junction.rescale(junction.producer.weight.clone())
    model.head.weight.copy_(model.head.weight * model.norm.weight)
    model.norm.weight.fill_(1)


def untie(model: Transformer) -> None:
    if model.config.tied:
        model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
        model.config = replace(model.config, tied=False)


def _set(layer: nn.Module, weight: Tensor) -> None:
    layer.weight.copy_(weight)


def random_rotation(size: int, generator: torch.Generator) -> Tensor:
    """An orthogonal matrix (size, size), float64: diag(±1) H / √size where size is a power of two.

    Each power of two doubles a matrix into [[R, R], [R, -R]] / √2 (Sylvester's construction); the
    remaining odd factor gets a random rotation, which spreads nearly as well.
    """
    odd = size // (size & -size)
    drawn = torch.randn(odd, odd, generator=generator, dtype=torch.float64)
    rotation = torch.linalg.qr(drawn).Q.contiguous()
    halves = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double() / 2**0.5
    while len(rotation) < size:
        rotation = torch.kron(halves, rotation)
    signs = torch.randint(2, (size, 1), generator=generator) * 2.0 - 1
    return signs.double() * rotation
