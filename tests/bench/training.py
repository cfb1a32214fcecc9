"""A training step of our model against `transformers`' Llama of the same shape and weights.

Forward, loss, backward and AdamW (torch's fused one for both), alternating in this process. Before
timing, both must give the same loss.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from minitrain.bench.case import OURS, PEER, Case, Shapes, peer_module
from minitrain.bench.steps import next_token_loss, random_text, training_step
from minitrain.measure.clock import Comparison, compare
from minitrain.model.config import preset
from minitrain.model.hub.config import hub_config
from minitrain.model.hub.load import hub_name
from minitrain.model.transformer import Transformer, build
from minitrain.optimizers.adamw import adamw

SHAPES = (("1M", 16, 128), ("10M", 8, 128))
REASON = (
    "both run the same matmuls, so what is left is noise (see the spread) or a pointwise operation "
    "that transformers fuses and we do not"
)


def cases(repeats: int = 15, shapes: Shapes = SHAPES, device: str | None = None) -> list[Case]:
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    version = peer_module("training", "transformers").__version__
    return [
        Case(
            f"training step {name}, {batch} x {length}",
            f"Llama of transformers {version}",
            partial(_measured, name, batch, length, repeats, device),
            REASON,
        )
        for name, batch, length in shapes
    ]


def _measured(name: str, batch: int, length: int, repeats: int, device: str) -> Comparison:
    model = build(preset(name), device=device)
    llama = as_llama(model)
    text = random_text(name, batch, length, device)
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()  # (B, T) both

    def peer_loss() -> Tensor:
        return llama(tokens, labels=targets, shift_labels=targets, use_cache=False).loss

    losses = {OURS: partial(next_token_loss, model, text), PEER: peer_loss}
    torch.testing.assert_close(losses[OURS](), losses[PEER](), rtol=1e-4, atol=1e-5)
    steps = {
        who: training_step(losses[who], adamw(contender, lr=1e-4))
        for who, contender in ((OURS, model), (PEER, llama))
    }
    return compare(steps, repeats, warmup=3)


def as_llama(model: Transformer) -> nn.Module:
    """transformers' Llama of the same shape, on the same device, with a copy of the weights."""
    transformers = peer_module("training", "transformers")
    config = transformers.LlamaConfig.from_dict(hub_config(model.config, "llama", "float32"))
    llama = transformers.LlamaForCausalLM(config)
    parameters = dict(llama.named_parameters())
    for name, parameter in model.named_parameters():
        parameters[hub_name(name)].data = parameter.detach().clone()
    return llama.train()
