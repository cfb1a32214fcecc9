from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.parallel.ddp import all_reduce_gradients
from minitrain.training.loop import Peers, StepResult, TrainConfig, evaluate, train, train_step
from minitrain.training.loss import IGNORED, mean_of_means_loss, token_weighted_loss
from minitrain.training.state import TrainState

from .toys import VOCABULARY, Batch, Toy, ToyLoader, random_batch


def cut(batch: Batch, sizes: list[int]) -> list[Batch]:
    pairs = zip(batch.tokens.split(sizes), batch.targets.split(sizes))
    return [Batch(tokens, targets) for tokens, targets in pairs]


def gradients_after_a_step(model: Toy, microbatches: list[Batch], clip=math.inf, **options):
    """train_step's gradients: an optimizer whose step is w - gradient shows them."""
    model = model.double()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    result = train_step(model, optimizer, microbatches, clip, **options)
    return result, [old - p.detach() for old, p in zip(before, model.parameters())]


def oracle(model: Toy, batch: Batch):
    """One batch, torch's own mean over the counted targets."""
    model = model.double()
    logits = model(batch.tokens).flatten(0, 1)
    loss = F.cross_entropy(logits, batch.targets.flatten(), ignore_index=IGNORED)
    return loss.item(), torch.autograd.grad(loss, list(model.parameters()))


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    valid=st.floats(0.05, 1.0),
    seed=st.integers(0, 999),
)
def test_any_cut_into_microbatches_gives_the_gradients_of_the_whole(sizes, valid, seed):
    batch = random_batch(sum(sizes), valid=valid, seed=seed)
    loss, expected = oracle(Toy(), batch)
    result, found = gradients_after_a_step(Toy(), cut(batch, sizes))
    assert result.loss == pytest.approx(loss, rel=1e-10)
    assert result.tokens == (batch.targets != IGNORED).sum()
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_the_mean_of_means_gives_other_gradients():
    full, sparse = random_batch(3, valid=1.0, seed=1), random_batch(3, valid=0.1, seed=2)
    whole = Batch(
        torch.cat([full.tokens, sparse.tokens]), torch.cat([full.targets, sparse.targets])
    )
    _, expected = oracle(Toy(), whole)
    model = Toy().double()
    naive = sum(mean_of_means_loss(model(b.tokens), b.targets, 2) for b in (full, sparse))
    found = torch.autograd.grad(naive, list(model.parameters()))
    assert not all(torch.allclose(a, b, rtol=1e-2) for a, b in zip(found, expected))
    equal = [random_batch(3, valid=1.0, seed=s) for s in (1, 2)]  # equally full: no difference
    tokens = sum(b.targets.numel() for b in equal)
    one = sum(mean_of_means_loss(model(b.tokens), b.targets, 2) for b in equal)
    other = sum(token_weighted_loss(model(b.tokens), b.targets, tokens) for b in equal)
    torch.testing.assert_close(one, other)


def test_the_step_clips_what_all_microbatches_add_up_to():
    batch = random_batch(8, seed=3)
    _, whole = gradients_after_a_step(Toy(), [batch], clip=0.05)
    _, parts = gradients_after_a_step(Toy(), cut(batch, [1, 5, 2]), clip=0.05)
    assert math.sqrt(sum(float((g**2).sum()) for g in parts)) == pytest.approx(0.05, rel=1e-4)
    for a, b in zip(parts, whole):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_bfloat16_computes_the_matmuls_and_nothing_else():
    model, seen = Toy(), []
    model.head.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = train_step(model, optimizer, [random_batch(4)], autocast=torch.bfloat16).loss
    assert seen == [torch.bfloat16]
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert loss == pytest.approx(oracle(Toy(), random_batch(4))[0], rel=0.02)
    assert loss != pytest.approx(oracle(Toy(), random_batch(4))[0], rel=1e-7)


def test_evaluation_weighs_tokens_and_leaves_no_trace():
    model, batches = (
        Toy(),
        [random_batch(2, valid=v, seed=s) for s, v in enumerate((1.0, 0.1, 0.5))],
    )
    whole = Batch(torch.cat([b.tokens for b in batches]), torch.cat([b.targets for b in batches]))
    before = [p.detach().clone() for p in model.parameters()]
    found = evaluate(model, batches)
    assert found == pytest.approx(oracle(Toy(), whole)[0], rel=1e-5)
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(before, model.parameters()))


# --- ranks: a fake group in one process, and the real one ---


def train_on_ranks(group, steps):
    model = Toy(seed=0)
    loader = ToyLoader(rows=2, seed=group.rank)
    average = partial(all_reduce_gradients, group, model)
    peers = Peers(group.size, group.all_reduce, average)
    records = []
    config = TrainConfig(steps=steps, lr=0.02)
    result = train(model, loader, config, callbacks=[records.append], peers=peers)
    norms = [record.grad_norm for record in records]
    return result.losses, norms, [p.detach().clone() for p in model.parameters()]


def test_two_ranks_train_as_one_on_both_ranks_rows():
    launch = pytest.importorskip("minitrain.ranks.launch").launch
    results = launch(train_on_ranks, 6, ranks=2)
    loaders = [iter(ToyLoader(rows=2, seed=rank)) for rank in range(2)]

    class Both:
        def __iter__(self):
            while True:
                a, b = (next(loader) for loader in loaders)
                yield Batch(torch.cat([a.tokens, b.tokens]), torch.cat([a.targets, b.targets]))

    model = Toy(seed=0)
    records = []
    alone = train(model, Both(), TrainConfig(steps=6, lr=0.02), callbacks=[records.append])
    assert results[0][0] == pytest.approx(alone.losses, rel=1e-5)
    assert results[0][1] == pytest.approx([record.grad_norm for record in records], rel=1e-4)
    assert results[0][:2] == results[1][:2]
    for a, b, c in zip(results[0][2], results[1][2], model.parameters()):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c.detach(), rtol=1e-4, atol=1e-5)


# --- the loop ---


def test_learns_and_reports_each_step():
    records = []
    config = TrainConfig(steps=60, lr=0.05, warmup=0.1, final_lr=0.1, accumulate=2)
    model, fixed = Toy(), random_batch(4)
    result = train(model, [fixed], config, callbacks=[records.append])
    assert result.losses[0] == pytest.approx(math.log(VOCABULARY), rel=0.3)
    assert result.losses[-1] < 0.8 * result.losses[0]
    assert [r.step for r in records] == list(range(1, 61))
    assert records[-1].tokens == 60 * 2 * int((fixed.targets != IGNORED).sum())
    assert [r.lr for r in records][5:7] == [0.05, 0.05]
    assert records[-1].lr == pytest.approx(0.005, rel=0.1)
    assert records[-1].progress == 1.0
    assert result.tokens_per_second > 0 and not result.interrupted


def test_groups_of_ones_own_optimizer_keep_the_ratio_of_their_rates_when_resumed_too():
    model = Toy()
    first, *others = model.parameters()
    groups = [{"params": [first], "lr": 1e-4}, {"params": others, "lr": 1e-3}]
    optimizer = torch.optim.SGD(groups)
    state = TrainState(model, optimizer, ToyLoader())
    for steps in (3, 6):
        train(model, state.loader, TrainConfig(steps=steps, lr=0.02, final_lr=1.0), state=state)
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == pytest.approx([0.002, 0.02])


def test_a_frozen_model_is_refused():
    model = Toy().requires_grad_(False)
    with pytest.raises(InputError, match="no parameter of this model trains"):
        train_step(model, torch.optim.SGD(Toy().parameters()), [random_batch(2)])


def test_another_step_may_take_the_loops_own_place():
    """It is given the microbatches; its result is reported, and the loop itself moves no weight."""
    given, records, model = [], [], Toy()
    before = [p.detach().clone() for p in model.parameters()]

    def step(microbatches: list[Batch]) -> StepResult:
        given.append(len(microbatches))
        return StepResult(loss=1.5, grad_norm=0.5, tokens=7)

    config = TrainConfig(steps=3, accumulate=2)
    result = train(model, ToyLoader(), config, callbacks=[records.append], step=step)
    assert given == [2, 2, 2] and result.losses == [1.5] * 3 and result.state.tokens == 21
    assert [r.grad_norm for r in records] == [0.5] * 3
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_a_time_limit_ends_the_cosine_in_time():
    records, clock = [], itertools.count()
    config = TrainConfig(seconds=200.0, lr=0.01, warmup=0.1)
    result = train(
        Toy(), ToyLoader(), config, callbacks=[records.append], now=lambda: float(next(clock))
    )
    assert 200 <= result.state.seconds < 210  # the clock ticks five times a step
    assert records[0].lr == 0.0  # it finds the speed
    assert max(r.lr for r in records) > 0.0099
    assert records[-1].lr < 0.0001
    assert records[-1].progress > 0.95


def test_a_machine_that_slows_down_still_ends_in_time():
    config = TrainConfig(seconds=100.0)
    assert config.total_steps(0, 0.0) == math.inf
    assert config.total_steps(50, 25.0) == 200
    assert config.total_steps(60, 50.0) == 120  # it slowed down: fewer steps in all


def test_a_wish_to_stop_ends_it_after_the_step():
    asked = iter([False, False, True])
    result = train(Toy(), ToyLoader(), TrainConfig(steps=9), stop=lambda: next(asked))
    assert result.interrupted and result.state.step == 2 == result.state.loader.place


def test_divergence_is_named_with_a_remedy():
    model = Toy()
    with torch.no_grad():
        model.head.weight.fill_(math.inf)
    with pytest.raises(InputError, match=r"step 1 .* diverged .* start again with"):
        train(model, ToyLoader(), TrainConfig(steps=2))


@pytest.mark.parametrize(
    "wrong",
    [{}, {"steps": 3, "seconds": 1.0}, {"steps": 0}, {"seconds": -1.0}, {"steps": 1, "lr": 0.0},
     {"steps": 1, "accumulate": 0}, {"steps": 1, "warmup": 1.5}, {"steps": 2.5},
     {"steps": 1, "accumulate": 1.5}, {"steps": 1, "autocast": torch.int8}],
)  # fmt: skip
def test_impossible_configurations_are_named(wrong):
    with pytest.raises(InputError):
        TrainConfig(**wrong)
