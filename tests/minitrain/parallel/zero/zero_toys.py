"""A Transformer of 5,000 parameters, and its training in one process, under DDP and under ZeRO."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer, build
from minitrain.optimizers.groups import clip_by_global_norm, parameter_groups
from minitrain.parallel.ddp import DDP
from minitrain.parallel.zero.optimizer import ZeroOptimizer
from minitrain.parallel.zero.sharded import Zero
from minitrain.parallel.zero.stage_3 import Zero3
from minitrain.parallel.zero.state import full_state_dict

CONFIG = ModelConfig(17, 16, layers=3, heads=2, kv_heads=1, ffn_size=24)
ROWS, LENGTH, LIMIT = 12, 5, 0.5  # rows over all ranks; gradients are clipped to LIMIT
ADAMW = partial(torch.optim.AdamW, lr=1e-2)


class Inside(torch.nn.Module):
    """Recomputes what is inside a unit."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return checkpoint(self.module, x, use_reentrant=False)


def toy(recompute: str = "") -> Transformer:
    """recompute: "units" computes each again from outside, "inside" a part of each."""
    model = build(CONFIG, dtype=torch.float64)
    for block in model.blocks:
        if recompute == "inside":
            block.mlp = Inside(block.mlp)
        block.recomputed = recompute == "units"
    return model


def forward(model, tokens):
    """`model(tokens)`, a block at a time, so that a block can be recomputed from outside."""
    inner = getattr(model, "module", model)
    if not inner.blocks[0].recomputed:
        return model(tokens)
    inner.forward = partial(_recomputed, inner)
    return model(tokens)


def _recomputed(inner, tokens):
    x = inner.embed(tokens)
    turns, mask = inner.surroundings(x)
    for block in inner.blocks:
        x = checkpoint(block, x, turns, mask, use_reentrant=False)
    return inner.head(inner.norm(x))


def text(step: int, rank: int = 0, ranks: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    rows = torch.randint(CONFIG.vocab_size, (ROWS, LENGTH + 1), generator=generator)
    return rows.chunk(ranks)[rank]


def loss_of(model, rows):
    return F.cross_entropy(forward(model, rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def one_process(steps: int, first: int = 0, model=None, optimizer=None) -> dict:
    """The run that every variant must follow: (gradients of the first step, norms, weights)."""
    model = model or toy()
    optimizer = optimizer or ADAMW(parameter_groups(model, 0.1))
    gradients, norms = {}, []
    for step in range(first, first + steps):
        loss_of(model, text(step)).backward()
        gradients = gradients or {n: p.grad.clone() for n, p in model.named_parameters()}
        norms.append(clip_by_global_norm(model.parameters(), LIMIT))
        optimizer.step()
        optimizer.zero_grad()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    return {"gradients": gradients, "norms": torch.stack(norms), "weights": weights}


def ddp(group, steps: int) -> dict:
    model = toy()
    wrapped, optimizer = DDP(model, group), ADAMW(parameter_groups(model, 0.1))
    norms = []
    for step in range(steps):
        loss_of(wrapped, text(step, group.rank, group.size)).backward()
        norms.append(clip_by_global_norm(model.parameters(), LIMIT))
        optimizer.step()
        optimizer.zero_grad()
    return {"norms": torch.stack(norms), "weights": dict(model.named_parameters())}


def sharded(group, stage: int, recompute: str = "", store=None, also=(), **options):
    """(zero, optimizer) of the toy."""
    model = toy(recompute)
    groups = parameter_groups(model, 0.1)
    zero = wrap(model, group, stage, **options)
    return zero, ZeroOptimizer(zero, groups, ADAMW, store, also)


def wrap(model, group, stage: int, **options):
    if stage == 3:
        return Zero3(model, group, **options)
    return Zero(model, group, stage, bucket_bytes=20_000, **options)


def train(group, zero, optimizer, steps: int, first: int = 0) -> dict:
    gradients, norms = {}, []
    for step in range(first, first + steps):
        loss_of(zero, text(step, group.rank, group.size)).backward()
        gradients = gradients or pieces_of_gradients(zero)
        norms.append(zero.clip_grad_norm_(LIMIT))
        optimizer.step()
        optimizer.zero_grad()
    trained = {name for unit in zero.units for name in unit.parameters}
    weights = {n: t for n, t in full_state_dict(zero).items() if n in trained}
    return {"gradients": gradients, "norms": torch.stack(norms), "weights": plain_names(weights)}


def pieces_of_gradients(zero) -> dict:
    """name -> (start, this rank's part of the averaged gradient)."""
    found = {}
    for unit in zero.trained:
        unit.gradient_shelf.get()
        for name, piece in unit.pieces.items():
            found[name] = (piece.start, unit.gradient[piece.place].clone())
        unit.gradient_shelf.drop()
    return plain_names(found)


def plain_names(named: dict) -> dict:
    return {name.replace("mlp.module.", "mlp."): value for name, value in named.items()}


def assert_follows(got: dict, want: dict) -> None:
    """Every gradient, every norm, every weight."""
    for name, (start, part) in got.get("gradients", {}).items():
        expected = want["gradients"][name].flatten()[start : start + len(part)]
        torch.testing.assert_close(part, expected, rtol=1e-10, atol=1e-12, msg=name)
    torch.testing.assert_close(got["norms"], want["norms"], rtol=1e-10, atol=1e-12)
    assert set(got["weights"]) == set(want["weights"])
    for name, weight in got["weights"].items():
        torch.testing.assert_close(
            weight.detach(), want["weights"][name].detach(), rtol=1e-10, atol=1e-10, msg=name
        )
