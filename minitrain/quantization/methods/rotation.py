"""Rotation: a Hadamard matrix spreads each outlier over all channels, and no channel stands out.

A stream x (T, D) may be rotated as long as all that read it turn back: with Q orthogonal, R of a
head's size,

    embed Q     q, k, v, gate, up, head: W Q     o, down: Q^T W        the stream
    v: (I ⊗ R)^T W                                o: W (I ⊗ R)          within each head

RMSNorm's own part x/rms(x) does not notice; its weights, which would, move into the matrices after
it first. Then a tied head is no longer the embedding, and gets a matrix of its own. Q = diag(±1) H
with a Hadamard matrix H: an outlier of size a becomes D numbers of size a/√D.
Paper: Ashkboos et al. 2024, QuaRot (arXiv:2404.00456), stages 1a and 1b; the rotations that it
makes while the model runs, for activations of 4 bits, are not here. Shapes: D width.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.model.transformer import Transformer
from minitrain.quantization.methods.junctions import check_float, junctions

READERS = ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")
WRITERS = ("attention.o", "mlp.down")


@torch.no_grad()
def rotate(model: Transformer, seed: int = 0) -> Transformer:
    """In place; the logits stay, to rounding. A tied head becomes a matrix of its own."""
    check_float(model)
    config = model.config
    generator = torch.Generator().manual_seed(seed)
    q = random_hadamard(config.hidden_size, generator)
    r = torch.block_diag(*[random_hadamard(config.head_size, generator)] * config.heads)
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
    """r (H·C, H·C): the same rotation in each head; of the K value heads as many blocks of it."""
    v, o = attention.v, attention.o
    values = r[: v.out_features, : v.out_features]
    _set(v, values.t() @ v.weight.double())
    if v.bias is not None:
        v.bias.copy_(values.t() @ v.bias.double())
    _set(o, o.weight.double() @ r)


def absorb_norms(model: Transformer) -> None:
    """Each norm's weight into what reads it; it is 1 then."""
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


def random_hadamard(size: int, generator: torch.Generator) -> Tensor:
    """diag(±1) H / √size: orthogonal (size, size), float64."""
    signs = torch.randint(2, (size, 1), generator=generator) * 2.0 - 1
    return signs.double() * hadamard(size) / size**0.5


def hadamard(size: int) -> Tensor:
    """(size, size) of ±1 with orthogonal rows, float64: a power of two times one of Paley's."""
    odd, doublings = size, 0
    while odd not in (1, 2):
        found = paley(odd)
        if found is not None:
            break
        if odd % 2:
            raise InputError(
                f"no Hadamard matrix of {size} is known here: a width of 2^k, or 2^k times 12, 20, "
                "28, 36 or 44, can be rotated"
            )
        odd, doublings = odd // 2, doublings + 1
    else:
        found = torch.ones(1, 1, dtype=torch.float64)
        doublings += odd == 2
    for _ in range(doublings):
        found = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), found)
    return found


def paley(size: int) -> Tensor | None:
    """Paley's matrices, from the squares modulo a prime p: size p + 1 where p = 3 mod 4, 2 (p + 1)
    where p = 1 mod 4; None for other sizes."""
    if is_prime(size - 1) and size % 4 == 0:
        p = size - 1
        core = bordered(p, sign=-1)
        return core + torch.eye(size, dtype=torch.float64)
    p = size // 2 - 1
    if size % 4 == 0 and is_prime(p) and p % 4 == 1:
        core, eye = bordered(p, sign=1), torch.eye(p + 1, dtype=torch.float64)
        plus = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
        minus = torch.tensor([[1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
        return torch.kron(core, plus) + torch.kron(eye, minus)
    return None


def bordered(p: int, sign: int) -> Tensor:
    """Jacobsthal's matrix, +1 where i - j is a square mod p and -1 where not, with a border."""
    squares = {i * i % p for i in range(1, p)}
    row = torch.tensor([0.0] + [1.0 if i in squares else -1.0 for i in range(1, p)]).double()
    place = torch.arange(p)
    out = torch.zeros(p + 1, p + 1, dtype=torch.float64)
    out[1:, 1:] = row[(place.unsqueeze(1) - place) % p]
    out[0, 1:], out[1:, 0] = 1, sign
    return out


def is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))
