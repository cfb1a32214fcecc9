"""Multi-token prediction: the model also learns the tokens after the next one.

    h of token t ── head ────────────────────────── p(t + 1)
         │
         └─ join(h, embed(t + 1)) ─ block ── head ── p(t + 2)      DeepSeek-V3: a chain of modules
                                      │
                                      └─ join(., embed(t + 2)) …   head and table: the model's

Module d reads the true token t + d, so p(t + d + 1) is as well defined as the model's own, and the
loss is the model's plus `weight` times the modules' mean. Serving either drops the modules, at no
cost, or uses them as the drafts of speculative decoding; DeepSeek-V3 reports that the second token
is accepted in 85 to 90% of cases. (Gloeckle's heads are independent: each sees h only, as Medusa's
in inference/speculation, and predicts without knowing the token between.)
Cost: a block and 4·D² FLOPs a token and module. Papers: DeepSeek-V3, arXiv 2412.19437, section 2.2;
Gloeckle et al., 2404.19737. Lab: e14. Shapes: B batch  T tokens  D width  V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.model.norm import RMSNorm
from minitrain.model.rope import Rotation
from minitrain.model.transformer import Block, Transformer


class Module(nn.Module):
    """Joins what the depth before knows with the next token, and runs one more block."""

    def __init__(self, model: Transformer):
        super().__init__()
        config = model.config
        self.hidden_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.token_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.join = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.block = Block(config)

    def forward(
        self, hidden: Tensor, token: Tensor, turns: Rotation, mask: Tensor | None
    ) -> Tensor:
        """hidden and token (B, T, D): of token t; embedded, the next one -> (B, T, D)."""
        both = torch.cat((self.hidden_norm(hidden), self.token_norm(token)), dim=-1)
        return self.block(self.join(both), turns, mask)


class MultiToken(nn.Module):
    """A Transformer and `depth` modules; depth 0 is the Transformer alone."""

    def __init__(self, model: Transformer, depth: int = 1):
        super().__init__()
        if depth < 0:
            raise InputError(f"a depth of {depth}: give 0 or more modules, DeepSeek-V3 has 1")
        self.model = model
        self.modules_after = nn.ModuleList(Module(model) for _ in range(depth))

    def forward(self, tokens: Tensor) -> list[Tensor]:
        """tokens (B, T) -> logits of the next token (B, T, V), of the one after (B, T - 1, V), …:
        row t of entry d predicts token t + d + 1."""
        model, x = self.model, self.model.embed(tokens)
        embedded = x
        turns, mask = model.surroundings(x)
        hidden = model.stack(model.blocks, x, turns, mask)
        logits = [model.head(model.norm(hidden))]
        for depth, module in enumerate(self.modules_after, 1):
            known = embedded[:, depth:]  # (B, T - d, D): token t + d
            turns, mask = model.surroundings(known)
            hidden = module(hidden[:, :-1], known, turns, mask)
            logits.append(model.head(model.norm(hidden)))
        return logits


def multi_token_loss(logits: list[Tensor], targets: Tensor, weight: float = 0.3) -> Tensor:
    """targets (B, T), the next tokens, -100 where not counted -> mean loss of the next token, plus
    `weight` times the mean over the depths after it."""
    losses = [
        F.cross_entropy(each.flatten(0, 1), targets[:, depth:].flatten(), ignore_index=-100)
        for depth, each in enumerate(logits)
    ]
    further = losses[1:]
    return losses[0] + weight * sum(further) / len(further) if further else losses[0]


def second_token_acceptance(logits: list[Tensor]) -> float:
    """How often the first module's likeliest token is the model's own, one step later."""
    drafted, own = logits[1].argmax(dim=-1), logits[0][:, 1:].argmax(dim=-1)  # (B, T - 1)
    return (drafted == own).float().mean().item()
