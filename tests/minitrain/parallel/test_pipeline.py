"""Every gradient equals one process's, whatever the schedule; and what is alive, idle and sent."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from minitrain.data.loader import Batch
from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.parallel.fabric import Device, Fabric
from minitrain.parallel.launch import launch
from minitrain.parallel.layout import layout_of
from minitrain.parallel.links import Link, LinkModel
from minitrain.parallel.pipeline import Pipeline, cut, naive_pipeline, share_of_loss
from minitrain.parallel.schedule_check import UNIT, UNIT_SPLIT, clocked, executed, peak_live
from minitrain.parallel.schedules import make_schedule
from minitrain.parallel.split_backward import SplitBackward, noting_uses
from minitrain.training.loop import mean_of_means_loss, token_weighted_loss

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
    torch.set_num_threads(1)
    return [step(group, *case) for case in cases]


NAMES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1), ("dualpipe", 1))
CASES = [(name, m, v, m == 3) for name, v in NAMES for m in (1, 3, 8)]
CASES += [("1f1b", 2, 1, True, [0, 4, 1]), ("interleaved", 5, 2, False)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
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


def naively(group):
    (stage,) = cut(tiny(), make_schedule("gpipe", group.size, 1), group.rank)
    batches = microbatches(3)
    share = naive_pipeline(group, stage, batches, share_of_loss(total_tokens(batches)))
    return share.item(), {n: p.grad for n, p in stage.named_parameters()}


def test_the_naive_pipeline_equals_one_process():
    results = launch(naively, ranks=3, timeout=60)
    total, want = one_process(False, 3)
    assert_whole(results, want)
    assert [share for share, _ in results] == pytest.approx([0, 0, total], rel=1e-10)


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


# ---- the two halves of a backward ----


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


# ---- time ----

ALPHA = 0.25  # of a forward: what a message takes


class Known(Pipeline):
    """Each operation takes its unit on the emulated clock, and next to nothing else."""

    def compute(self, step, operation, arrived):
        result = super().compute(step, operation, arrived)
        unit = UNIT_SPLIT if self.schedule.splits_backward else UNIT
        self.group.clock.advance(unit[operation.kind])
        return result


def emulated(group, kind, cases):
    events = []
    for name, m, v in cases:
        schedule = make_schedule(name, group.size, m, v)
        group.use(group.clock.fabric.clock(group))
        pipeline = kind(group, schedule, cut(tiny(), schedule, group.rank))
        pipeline.shared = []  # what is summed at the end is no operation of the schedule
        pipeline.run(microbatches(m), share_of_loss(1))
        events += executed([group.trace]).ranks
    return events


TIMED = [
    ("gpipe", 4, 1),
    ("1f1b", 5, 1),
    ("interleaved", 4, 2),
    ("zero-bubble", 6, 1),
    ("dualpipe", 6, 1),
]


@pytest.mark.parametrize("alpha", [0.0, ALPHA])
def test_the_emulated_clock_is_the_schedules_own(alpha):
    """Every operation begins and ends when the validator says, so that the bubble is its, too."""
    fabric = Fabric("units", Device("any"), LinkModel(Link(alpha, 0)), compute_scale=1e-12)
    runs = launch(emulated, Known, TIMED, ranks=4, fabric=fabric, timeout=60)
    for (name, m, v), *ranks in zip(TIMED, *runs):
        planned = clocked(make_schedule(name, 4, m, v), send=alpha)
        for got, want in zip(ranks, planned.ranks):
            assert [event.operation for event in got] == [event.operation for event in want]
            times = [time for event in want for time in event[1:]]
            assert [time for event in got for time in event[1:]] == pytest.approx(times, abs=1e-6)


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


def test_the_layout_tells_what_ranks_share():
    schedule = make_schedule("1f1b", 2, 2)
    for tied, name in ((True, "partial"), (False, "split")):
        first, last = (cut(tiny(tied), schedule, rank)[0] for rank in (0, 1))
        for end in (first.embed, last.head):
            assert getattr(layout_of(end.weight), name) == {"pp"}
        assert layout_of(last.norm.weight).split == {"pp"}
    for stage in cut(tiny(), make_schedule("dualpipe", 2, 2), 0):
        assert all(layout_of(p).partial == {"pp"} for p in stage.parameters())
