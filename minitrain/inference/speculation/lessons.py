"""Training data of draft heads: the target's own text, and its hidden vectors.

A head upon a frozen target is trained on nothing but what the target knows already, so its own
text is the right one, any amount of it, in no other distribution than that of its use. Its targets
are the target's next-token distributions and not only the tokens drawn from them: the same in the
mean, with less noise.

The head of a model is a row for each token of its vocabulary, most of which never come. A draft
needs not guess them: over a shortlist of the frequent ones it costs V'/V of the bytes, and a token
that is not on it has q = 0, which verification allows for.
Paper for the shortlist: Zhao et al. (FR-Spec), arXiv 2502.14856. Lab: e09b.
Shapes: B texts  T tokens  D width  V vocabulary  V' shortlist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from minitrain.errors import InputError
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.model.transformer import Transformer


class Lessons(NamedTuple):
    tokens: Tensor  # (B, T)
    hidden: Tensor  # (B, T, D), of which the target's head made the next tokens


@torch.no_grad()
def own_text(
    target: Transformer,
    prompt: Sequence[int],
    texts: int,
    length: int,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Lessons:
    """Texts of `length` tokens that begin with the prompt, written and read in one batch."""
    if not 0 < len(prompt) < length:
        raise InputError(
            f"a prompt of {len(prompt)} tokens for texts of {length}: give one token at least, and "
            "fewer than a text has"
        )
    cache = DenseCache.of(target, texts, room=length)
    device = target.embed.weight.device
    written = [torch.tensor([list(prompt)] * texts, device=device)]  # (B, t) each
    hidden = [read_on(target, written[0], cache)]
    for _ in range(length - len(prompt)):
        p = (target.head(hidden[-1][:, -1]).float() / temperature).softmax(dim=-1)  # (B, V)
        race = torch.empty(p.shape).exponential_(generator=generator).to(device)
        written.append((p / race).argmax(dim=1, keepdim=True))
        hidden.append(read_on(target, written[-1], cache))
    return Lessons(torch.cat(written, dim=1), torch.cat(hidden, dim=1))


def frequent(tokens: Tensor, most: int) -> Tensor:
    """(V',) ids of the `most` frequent tokens of a text, in order of id; fewer if it has fewer."""
    ids, counts = tokens.unique(return_counts=True)
    return ids[counts.argsort(descending=True, stable=True)[:most]].sort().values


@dataclass(frozen=True)
class Course:
    """The training settings of a head: about a minute for a model of 15M parameters."""

    steps: int = 200
    texts: int = 16  # a step
    lr: float = 2e-3
    seed: int = 0


def train(
    head: nn.Module, lessons: Lessons, course: Course = Course(), title: str | None = None
) -> list[float]:
    """Minimises `head.loss(lessons)` over batches of texts; the losses, step by step. `title`: of
    its progress bar, None for none."""
    generator = torch.Generator().manual_seed(course.seed)
    optimizer = torch.optim.AdamW(head.parameters(), lr=course.lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, course.lr, course.steps)
    losses = []
    for _ in tqdm(range(course.steps), title, disable=title is None):
        some = torch.randperm(len(lessons.tokens), generator=generator)[: course.texts]
        loss = head.loss(Lessons(lessons.tokens[some], lessons.hidden[some]))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses
