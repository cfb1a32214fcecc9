"""Every gradient equals one process's, whatever the schedule; and what is alive, idle and sent."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from minitrain.errors import InputError
from minitrain.parallel.pipeline.executor import Pipeline
from minitrain.parallel.pipeline.plain import run_operations, share_of_loss
from minitrain.parallel.pipeline.schedules import make_schedule
from minitrain.parallel.pipeline.split_backward import SplitBackward, noting_uses
from minitrain.parallel.pipeline.stages import cut
from minitrain.parallel.pipeline.timeline import peak_live
from minitrain.ranks.launch import launch
from minitrain.training.loss import mean_of_means_loss, token_weighted_loss

from .pipeline_toys import microbatches, one_process, tiny, total_tokens


def step(group, name, m, v, tied, layers=None):
    schedule = make_schedule(name, group.size, m, v)
    stages = cut(tiny(tied), schedule, group.rank, layers)
    batches = microbatches(m)
    pipeline = Pipeline(group, schedule, stages)
    share = pipeline.run(batches, share_of_loss(total_tokens(batches)))
    gradients = {n: p.grad for stage in stages for n, p in stage.named_parameters()}
    return share.item(), gradients, pipeline.peak_live, pipeline.live


def many(group, cases):
    torch.set_num_threads(1)
    return [step(group, *case) for case in cases]


NAMES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1), ("dualpipe", 1))
CASES = [(name, m, v, m == 3) for name, v in NAMES for m in (1, 3, 8)]
CASES += [("1f1b", 2, 1, True, [0, 4, 1]), ("interleaved", 5, 2, False)]


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_gradients_equal_one_process(ranks):
    """m below, above and not divisible by p; 5 layers in up to 8 stages; tied and not."""
    cases = [case for case in CASES if len(case) == 4 or len(case[4]) == ranks]
    for case, *results in zip(cases, *launch(many, cases, ranks=ranks, timeout=60)):
        name, m, v, tied = case[:4]
        total, want = one_process(tied, m)
        assert_whole(results, want)
        assert sum(share for share, *_ in results) == pytest.approx(total, rel=1e-10), case
        counted = peak_live(make_schedule(name, ranks, m, v))
        assert [(peak, live) for *_, peak, live in results] == [(n, 0) for n in counted], case


def assert_whole(results, want):
    """Each rank's gradients are the model's, and no parameter is on no rank."""
    for _, gradients, *_ in results:
        for name, gradient in gradients.items():
            expected = want.get(name, want["embed.weight"])  # a tied head's are the embedding's
            torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)
    assert set(want) <= set().union(*(gradients for _, gradients, *_ in results))


# ---- plausible and wrong: each of these must be told from the right one ----


class TiedNotReduced(Pipeline):
    def add_up_shared(self):
        pass


def own_mean(logits, batch):
    return token_weighted_loss(logits, batch.targets, batch.tokens_counted)


def mean_of_means(logits, batch):
    return mean_of_means_loss(logits, batch.targets, 2)


def wrong(group, mistake):
    """Microbatches of one shape, three times as full in one as in the other."""
    schedule = make_schedule("1f1b", group.size, 2)
    batches = alike = microbatches(7)[::6]
    alike[1].targets[:, 1:] = -100
    losses = {"not divided": own_mean, "mean of means": mean_of_means}
    loss = losses.get(mistake, share_of_loss(total_tokens(alike)))
    if mistake == "misordered" and group.rank == 1:
        batches = alike[::-1]
    if mistake == "dropped":
        schedule, batches = make_schedule("1f1b", group.size, 1), alike[:1]
    stages = cut(tiny(tied=True), schedule, group.rank)
    kind = TiedNotReduced if mistake == "tied not reduced" else Pipeline
    kind(group, schedule, stages).run(batches, loss)
    return None, {n: p.grad for stage in stages for n, p in stage.named_parameters()}


MISTAKES = ["not divided", "mean of means", "misordered", "dropped", "tied not reduced"]


def every_mistake(group):
    return [wrong(group, mistake) for mistake in ("", *MISTAKES)]


def test_wrong_versions_are_told_apart():
    model, batches = tiny(tied=True), microbatches(7)[::6]
    batches[1].targets[:, 1:] = -100
    for batch in batches:
        logits = model(batch.tokens, batch.documents, batch.positions)
        share_of_loss(total_tokens(batches))(logits, batch).backward()
    want = {name: p.grad for name, p in model.named_parameters()}
    right, *others = zip(*launch(every_mistake, ranks=2, timeout=60))
    assert_whole(right, want)
    for results in others:
        with pytest.raises(AssertionError):
            assert_whole(results, want)


# ---- what cannot be ----


def one_rank(group, case):
    schedule = make_schedule("1f1b", 2 if case == "ranks" else 1, 2)
    stages = cut(tiny(), schedule, 0, [1, 1] if case == "layers" else None)
    Pipeline(group, schedule, stages).run(microbatches(3), share_of_loss(1))


@pytest.mark.parametrize(
    "case, words",
    [
        ("ranks", "2 ranks .* given to 1 ranks"),
        ("layers", "give 1 numbers"),
        ("m", "3 microbatches"),
    ],
)
def test_what_does_not_fit_is_said(case, words):
    with pytest.raises(InputError, match=words):
        launch(one_rank, case, ranks=1, timeout=30)


# ---- with other techniques ----


class Forgetful(nn.Module):
    """A block with dropout, made again in backward where `again`."""

    def __init__(self, block, again):
        super().__init__()
        self.block, self.again = block, again

    def forward(self, x, turns, mask):
        if self.again:
            return checkpoint(self.dropped, x, turns, mask, use_reentrant=False)
        return self.dropped(x, turns, mask)

    def dropped(self, x, turns, mask):
        return torch.dropout(self.block(x, turns, mask), 0.5, train=True)


def recomputed(group):
    found = []
    for name in ("1f1b", "zero-bubble"):
        for again in (False, True):
            model = tiny()
            model.blocks = nn.ModuleList(Forgetful(block, again) for block in model.blocks)
            schedule = make_schedule(name, group.size, 4)
            stages = cut(model, schedule, group.rank)
            torch.manual_seed(group.rank)
            Pipeline(group, schedule, stages).run(microbatches(4), share_of_loss(1))
            found.append({n: p.grad for n, p in stages[0].named_parameters()})
    return found


def test_recomputation_draws_each_microbatchs_own_dropout_again():
    for results in launch(recomputed, ranks=2, timeout=60):
        for kept, again in (results[:2], results[2:]):
            for name, gradient in kept.items():
                torch.testing.assert_close(again[name], gradient, rtol=1e-10, atol=1e-12)


# ---- B computes no weight's gradient, W nothing else, and together they are whole ----


def half_and_half(tied=False):
    """FLOPs of forward, B and W of a whole model as one stage; its gradients before W and after."""
    schedule, batch = make_schedule("zero-bubble", 1, 1), microbatches(1)[0]
    (stage,) = cut(tiny(tied), schedule, 0)
    flops = []
    with FlopCounterMode(display=False) as counter:
        with noting_uses(stage) as uses:
            out = stage(None, batch)
        flops.append(counter.get_total_flops())
        split = SplitBackward(stage, uses)
        split.inputs(share_of_loss(batch.tokens_counted)(out, batch), None)
        flops.append(counter.get_total_flops())
        early = {n for n, p in stage.named_parameters() if p.grad is not None}
        split.weights()
        flops.append(counter.get_total_flops())
    forward, b, w = (after - before for before, after in zip([0, *flops], flops))
    return forward, b, w, early, {n: p.grad for n, p in stage.named_parameters()}


def test_b_computes_no_weight_gradient_and_w_nothing_else():
    """Each matmul of the forward has one in B and one in W: as many FLOPs (attention counts 0)."""
    forward, b, w, early, gradients = half_and_half()
    assert forward == b == w > 0 and early == set()
    assert set(gradients) == set(one_process(False, 1)[1])
    for name, want in one_process(False, 1)[1].items():
        torch.testing.assert_close(gradients[name], want, rtol=1e-10, atol=1e-12)


def test_a_parameter_used_twice_in_a_stage_has_its_gradient_with_b():
    *_, early, gradients = half_and_half(tied=True)
    assert early == {"embed.weight"}
    for name, want in one_process(True, 1)[1].items():
        torch.testing.assert_close(gradients[name], want, rtol=1e-10, atol=1e-12)


class Together(nn.Module):
    """Takes its two linears' matrices together, as tensor-parallel attention does."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.out, self.unused = nn.Linear(3, 1), nn.Linear(3, 3)

    def forward(self, x):
        return self.out(torch.tanh(x @ self.a.weight @ self.b.weight)).sum()


def test_parameters_used_outside_their_module_are_not_forgotten():
    module, x = Together(), torch.randn(2, 3, requires_grad=True)
    module(x).backward()
    want, dx = {n: p.grad for n, p in module.named_parameters()}, x.grad
    module.zero_grad()
    with noting_uses(module) as uses:
        root = module(x)
    split = SplitBackward(module, uses)
    torch.testing.assert_close(split.inputs(root, x), dx)
    split.weights()
    for name, p in module.named_parameters():
        assert (p.grad is None) == (want[name] is None), name
        assert p.grad is None or torch.allclose(p.grad, want[name]), name


def plainly(group):
    """GPipe's list, and 1F1B's, by the plain executor."""
    found, batches = [], microbatches(5)
    for name in ("gpipe", "1f1b"):
        schedule = make_schedule(name, group.size, 5)
        (stage,) = cut(tiny(), schedule, group.rank)
        loss = run_operations(group, schedule.ranks[group.rank], stage, batches)
        found.append((loss.item(), {n: p.grad for n, p in stage.named_parameters()}))
    return found


def test_the_plain_executor_equals_one_process():
    total, want = one_process(False, 5)
    for results in zip(*launch(plainly, ranks=3, timeout=60)):
        assert_whole(results, want)
        assert [loss for loss, _ in results] == pytest.approx([0, 0, total], rel=1e-10)
