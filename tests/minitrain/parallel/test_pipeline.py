"""Every gradient equals one process's, whatever the schedule; and what is alive, idle and sent."""

from __future__ import annotations

import pytest
import torch

from minitrain.data.loader import Batch
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.parallel.launch import launch
from minitrain.parallel.pipeline import Pipeline, cut, share_of_loss
from minitrain.parallel.schedule_check import peak_live
from minitrain.parallel.schedules import make_schedule

VOCABULARY, LAYERS = 11, 5


def tiny(tied: bool = False):
    config = ModelConfig(
        VOCABULARY, 8, layers=LAYERS, heads=2, kv_heads=1, ffn_size=12, tied=tied, qkv_bias=True
    )
    return build(config, dtype=torch.float64)


def microbatches(m: int) -> list[Batch]:
    """Rows of two documents; unequal in length, rows and tokens that count."""
    generator = torch.Generator().manual_seed(m)
    made = []
    for i in range(m):
        rows, length = 1 + i % 2, 4 + i % 3
        tokens, targets = torch.randint(VOCABULARY, (2, rows, length), generator=generator)
        targets[:, i % length :] = -100 if i % 3 == 1 else targets[:, i % length :]
        documents = (torch.arange(length) >= 2).long().expand(rows, length)
        positions = torch.arange(length).expand(rows, length) + i  # not from 0: they must travel
        made.append(Batch(tokens, targets, documents, positions))
    return made


def total_tokens(batches: list[Batch]) -> int:
    return sum(batch.tokens_counted for batch in batches)


def one_process(tied: bool, m: int):
    model, batches = tiny(tied), microbatches(m)
    loss, total = share_of_loss(total_tokens(batches)), 0.0
    for batch in batches:
        share = loss(model(batch.tokens, batch.documents, batch.positions), batch)
        share.backward()
        total += share.item()
    return total, {name: p.grad for name, p in model.named_parameters()}


def step(group, name, m, v, tied, layers=None):
    schedule = make_schedule(name, group.size, m, v)
    stages = cut(tiny(tied), schedule, group.rank, layers)
    batches = microbatches(m)
    pipeline = Pipeline(group, schedule, stages)
    share = pipeline.run(batches, share_of_loss(total_tokens(batches)))
    gradients = {n: p.grad for stage in stages for n, p in stage.named_parameters()}
    return share.item(), gradients, pipeline.peak_live, pipeline.live


def many(group, cases):
    return [step(group, *case) for case in cases]


CASES = [
    (name, m, v, tied)
    for name, v in (
        ("gpipe", 1),
        ("1f1b", 1),
        ("interleaved", 2),
        ("zero-bubble", 1),
        ("dualpipe", 1),
    )
    for m, tied in ((1, False), (3, True), (5, False), (8, True))
]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_gradients_equal_one_process(ranks):
    for case, *results in zip(CASES, *launch(many, CASES, ranks=ranks, timeout=60)):
        total, want = one_process(case[3], case[1])
        assert_whole(results, want)
        assert sum(share for share, *_ in results) == pytest.approx(total, rel=1e-10), case
        counted = peak_live(make_schedule(case[0], ranks, case[1], case[2]))
        assert [(peak, live) for *_, peak, live in results] == [(n, 0) for n in counted], case


def assert_whole(results, want):
    """Each rank's gradients are the model's, and no parameter is on no rank."""
    for _, gradients, *_ in results:
        for name, gradient in gradients.items():
            expected = want.get(name, want["embed.weight"])  # a tied head's are the embedding's
            torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)
    assert set(want) <= set().union(*(gradients for _, gradients, *_ in results))
