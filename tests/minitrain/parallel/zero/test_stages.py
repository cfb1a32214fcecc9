"""ZeRO 1 to 3 follow one process, and DDP, in every gradient, norm and weight; and hold what the
paper's table 1 says."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from minitrain.errors import InputError
from minitrain.measure.memory import MemoryLedger
from minitrain.measure.parameters import parameter_count
from minitrain.memory.stores import DiskStore, MemoryStore
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.optimizers.groups import clip_factor, parameter_groups
from minitrain.parallel.ddp import DDP, all_reduce_gradients
from minitrain.parallel.zero.optimizer import ZeroOptimizer
from minitrain.parallel.zero.sharded import Zero
from minitrain.parallel.zero.stage_3 import Zero3
from minitrain.ranks.launch import launch
from minitrain.training.loop import Peers, train_step

from . import zero_toys as toys

STEPS = 4


def every_variant(group, folder):
    """Three ranks, which cut parameters and leave padding: each stage, each thing that it meets."""
    out = {"DDP": toys.ddp(group, STEPS)}
    for stage in (1, 2, 3):
        also = ((), ("gradients",), ("gradients", "parameters"))[stage - 1]
        disk = DiskStore(Path(folder) / f"{stage}-{group.rank}")
        variants = {
            "plain": {},
            "recomputed": {"recompute": "units"},
            "offloaded": {"store": MemoryStore(), "also": also},
            "offloaded to disk, recomputed": {"store": disk, "also": also, "recompute": "inside"},
        }
        for name, options in variants.items():
            out[f"stage {stage} {name}"] = toys.train(
                group, *toys.sharded(group, stage, **options), STEPS
            )
    return out


def test_every_stage_follows_one_process(tmp_path):
    want = toys.one_process(STEPS)
    for results in launch(every_variant, str(tmp_path), ranks=3, timeout=200):
        assert len(results) == 13
        for name, got in results.items():
            try:
                toys.assert_follows(got, want)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error


# ---- what a rank holds ----

BYTES_CONFIG = ModelConfig(64, 32, layers=3, heads=2, kv_heads=1, ffn_size=64)


def held(group, stage, dtype, options):
    """(bytes between backward and step, bytes at the peak, of the largest unit) of a second step."""
    model = build(BYTES_CONFIG, dtype=dtype)
    if stage == 0:
        zero = DDP(model, group)
        optimizer = torch.optim.AdamW(model.parameters())
    else:
        units = [model.embed, *model.blocks, model.head]
        zero = (
            Zero3(model, group, units, prefetch=False, **options)
            if stage == 3
            else Zero(model, group, stage, bucket_bytes=30_000, **options)
        )
        optimizer = ZeroOptimizer(zero, [{"params": list(model.parameters())}], torch.optim.AdamW)
    ledger = MemoryLedger(zero, getattr(optimizer, "inner", optimizer))
    rows = torch.zeros(1, 3, dtype=torch.int64)
    with ledger:
        for _ in range(2):
            F.cross_entropy(zero(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).backward()
            before = ledger.now_bytes
            ledger.reset_peak()
            optimizer.step()
            optimizer.zero_grad()
    units = getattr(zero, "units", ())
    return before, ledger.highest, max((u.full.numel() * u.full.itemsize for u in units), default=0)


def table_1(group):
    mixed = {"compute_dtype": torch.bfloat16}
    half, single = torch.bfloat16, torch.float32
    return {
        "float32": [held(group, stage, single, {}) for stage in (0, 1, 2, 3)],
        "mixed": [held(group, stage, half, {}) for stage in (1, 2)]
        + [held(group, 3, single, mixed)],
    }


def test_each_stage_holds_the_bytes_of_table_1():
    ranks, size = 4, parameter_count(BYTES_CONFIG)
    share = size / ranks
    want = {
        "float32": [16 * size, 8 * size + 8 * share, 4 * size + 12 * share, 16 * share],
        "mixed": [4 * size + 12 * share, 2 * size + 14 * share, 14 * share],
    }
    for got in launch(table_1, ranks=ranks, timeout=120):
        for precision, stages in got.items():
            for (before, _, unit), bound in zip(stages, want[precision]):
                slack = 4000  # norms, padding, step counters, the batch
                assert bound - slack < before < bound + unit + slack, (precision, before, bound)
            _, highest, unit = stages[-1]
            itemsize = 4 if precision == "float32" else 2
            assert highest["parameters"] < 4 * share + unit + itemsize * 32 + slack, precision
        plain, sharded = got["float32"][0][0], got["float32"][3][0]
        assert plain > 3 * sharded, "what does not shard is told by its bytes"


def waiting(group):
    """Bytes of Adam's state in memory, with a store: at the end, at the peak, and without one."""
    found = []
    for store in (MemoryStore(), None):
        model = build(replace(BYTES_CONFIG, layers=8))
        zero = Zero3(model, group)
        groups = [{"params": list(model.parameters())}]
        optimizer = ZeroOptimizer(zero, groups, torch.optim.AdamW, store)
        with MemoryLedger(zero, optimizer.inner) as ledger:
            for _ in range(2):
                zero(torch.zeros(1, 3, dtype=torch.int64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            for shelf in getattr(optimizer, "shelves", ()):
                shelf.settle()
        found += [ledger.now["optimizer"], ledger.highest["optimizer"]]
    return found


def test_of_a_state_that_waits_elsewhere_three_of_nine_units_are_here():
    for now, highest, whole, _ in launch(waiting, ranks=2):
        assert now < 1000 and highest < 0.45 * whole, "three in the first step, and then two"


# ---- microbatches, odd models, the oracle ----


class Batch:
    def __init__(self, rows, valid):
        self.tokens, self.targets = rows[:, :-1], rows[:, 1:].clone()
        self.targets[:, valid:] = -100
        self.documents = self.positions = None


def microbatches(group):
    """Unequal numbers of targets, on every rank and in every microbatch."""
    return [Batch(toys.text(i, group.rank, group.size), 1 + (group.rank + i) % 3) for i in (0, 1)]


def accumulated(group):
    model = toys.toy()
    optimizer = toys.ADAMW(parameter_groups(model, 0.1))
    peers = Peers(group.size, group.all_reduce, partial(all_reduce_gradients, group, model))
    runs = {"DDP": [train_step(model, optimizer, microbatches(group), 0.5, peers=peers)]}
    for stage in (1, 2, 3):
        zero, optimizer = toys.sharded(group, stage)
        runs[f"stage {stage}"] = [
            train_step(zero, optimizer, microbatches(group), 0.5, peers=zero.peers())
        ]
        for batch in microbatches(group):  # without sending in the first one
            loss = F.cross_entropy(zero(batch.tokens).flatten(0, 1), batch.targets.flatten())
            if batch.tokens.sum() != microbatches(group)[-1].tokens.sum():
                with zero.no_sync():
                    loss.backward()
                assert all(unit.gradient is None for unit in zero.trained)
            else:
                loss.backward()
        whole = toys.pieces_of_gradients(zero)
        optimizer.zero_grad()
        for batch in microbatches(group):  # and sending in both
            F.cross_entropy(zero(batch.tokens).flatten(0, 1), batch.targets.flatten()).backward()
        for name, (_, part) in toys.pieces_of_gradients(zero).items():
            torch.testing.assert_close(part, whole[name][1], rtol=1e-10, atol=1e-12)
    return runs


class Odd(nn.Module):
    """Frozen inside a unit and a frozen unit; tied across units; a unit used twice; parts unused."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        linear = [nn.Linear(6, 6) for _ in range(7)]
        linear[0].requires_grad_(False)  # its weight is needed after the trained one has its own
        linear[2].requires_grad_(False)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(linear[0], nn.Tanh(), linear[1]),
                nn.Sequential(linear[2], nn.Tanh()),  # frozen
                nn.Sequential(linear[3], nn.Tanh()),  # twice
                nn.Sequential(linear[4], nn.Tanh()),  # tied to the first, so the root's
                nn.Sequential(linear[5]),  # not used on every path
            ]
        )
        self.blocks[3][0].weight = self.blocks[0][2].weight
        self.never = linear[6]
        self.gain = nn.Parameter(torch.randn(()))
        self.double()

    def forward(self, x, order):
        for index in order:
            x = x + self.blocks[index](x)
        return x * self.gain


ORDERS = ([0, 1, 2, 3, 2], [0, 4, 1, 2], [3, 2, 0], [0, 1, 2, 3, 4])  # control flow changes


def odd_input(order, rank=0, ranks=1):
    generator = torch.Generator().manual_seed(len(order))
    return torch.randn(12, 6, dtype=torch.float64, generator=generator).chunk(ranks)[rank]


def odd(group):
    out = []
    for stage in (1, 2, 3):
        model = Odd()
        zero = Zero3(model, group) if stage == 3 else Zero(model, group, stage, bucket_bytes=400)
        groups = [{"params": [p for p in model.parameters() if p.requires_grad]}]
        optimizer = ZeroOptimizer(zero, groups, lambda g: torch.optim.SGD(g, lr=0.1))
        for order in ORDERS:
            zero(odd_input(order, group.rank, group.size), order).square().mean().backward()
            if stage == 3:
                assert all(unit.full.untyped_storage().nbytes() == 0 for unit in zero.units)
            gradients = toys.pieces_of_gradients(zero)
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            last = zero(odd_input([0], group.rank, group.size), [0, 1, 2])
        out.append((gradients, last))
    return out


def test_accumulated_and_odd_models_equal_one_process():
    model = Odd()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for order in ORDERS:
        optimizer.zero_grad()
        model(odd_input(order), order).square().mean().backward()
        want = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    last = model(odd_input([0]), [0, 1, 2]).chunk(2)
    for rank, (runs, stages) in enumerate(launch(lambda g: (accumulated(g), odd(g)), ranks=2)):
        for got in runs.values():
            assert got[0].loss == pytest.approx(runs["DDP"][0].loss, abs=1e-12)
            assert got[0].grad_norm == pytest.approx(runs["DDP"][0].grad_norm, rel=1e-10)
        for gradients, output in stages:
            torch.testing.assert_close(output, last[rank], rtol=1e-10, atol=1e-12)
            for name, (start, part) in gradients.items():
                whole = want.get(name, torch.zeros(1000, dtype=part.dtype)).flatten()
                torch.testing.assert_close(part, whole[start : start + len(part)], msg=name)


def fsdp2(group, precise):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dtype = torch.float64 if precise else torch.float32
    compute, reduce = (None, None) if precise else (torch.bfloat16, torch.float32)
    theirs, ours = (toys.toy().to(dtype) for _ in range(2))
    mesh = DeviceMesh.from_group(group.process_group, "cpu")
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduce)
    for module in (*theirs.blocks, theirs):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    zero = Zero3(ours, group, compute_dtype=compute, reduce_dtype=reduce)
    optimizers = (
        torch.optim.SGD(theirs.parameters(), lr=0.5),
        ZeroOptimizer(
            zero, [{"params": list(ours.parameters())}], lambda g: torch.optim.SGD(g, lr=0.5)
        ),
    )
    losses, before = ([], []), group.trace.bytes_sent()
    for step in range(3):
        rows = toys.text(step, group.rank, group.size)
        for model, optimizer, seen in zip((theirs, zero), optimizers, losses):
            logits = model(rows[:, :-1]).to(dtype)
            loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(loss.item())
    elements = [sum(p.numel() for p in m.parameters()) for m in (ours, *ours.blocks)]
    return losses, group.trace.bytes_sent() - before, elements


def oracles(group):
    return fsdp2(group, True), fsdp2(group, False)


def test_against_fsdp2():
    for exact, mixed in launch(oracles, ranks=2, timeout=60):
        (theirs, ours), sent, (size, *blocks) = exact
        assert ours == pytest.approx(theirs, rel=1e-10)
        # A reduce-scatter and a gather of all, and another gather of the blocks but the last, which
        # stays: (N-1)/N of each, and nothing is gathered for nothing.
        assert sent == 3 * 8 * (2 * size + sum(blocks[:-1])) // 2
        (theirs, ours), _, _ = mixed
        assert ours == pytest.approx(theirs, rel=2e-3)


# ---- the norm ----


class Shapes(nn.Module):
    """Rows that lie across one border of shards and across several, a scalar, a matrix of one row."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        shapes = [(5, 7), (), (1, 40), (3,), (11, 2), (2, 2, 3)]
        self.weights = nn.ParameterList(torch.randn(shape) for shape in shapes)

    def forward(self, scale):
        return scale * sum(w.pow(3).sum() for w in self.weights)


def norms(group):
    """The norm in each stage, before and after clipping, of ranks with different gradients."""
    out = []
    for stage in (1, 2, 3):
        model = Shapes()
        zero = Zero3(model, group, []) if stage == 3 else Zero(model, group, stage)
        zero(1.0 + group.rank).backward()
        before = zero.clip_grad_norm_(0.25)
        out.append((before.item(), zero.clip_grad_norm_(1.0).item()))
    return out


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_norm_is_that_of_the_whole_averaged_gradient(ranks):
    model = Shapes()
    (model(1.0) * (ranks + 1) / 2).backward()
    want = nn.utils.clip_grad_norm_(model.parameters(), 0.25).item()
    for found in launch(norms, ranks=ranks):
        for before, after in found:
            assert before == pytest.approx(want, rel=1e-6)
            assert after == pytest.approx(0.25, rel=1e-5)


# ---- plausible and wrong: each of these must be told from the right one ----


class NeverGathers(Zero):
    def updated(self, unit):
        unit._arrived = lambda: None  # the other ranks' parts stay as they were


class ClipsItsOwn(Zero):
    """Each rank by the norm of its own shard."""

    def clip_grad_norm_(self, max_norm):
        gradients = [p.grad.as_subclass(torch.Tensor) for p in self.parameters()]
        norm = torch.linalg.vector_norm(
            torch.stack([torch.linalg.vector_norm(g) for g in gradients])
        )
        torch._foreach_mul_(gradients, clip_factor(norm, max_norm))
        return norm


class NeverDivides(Zero):
    def _issue_ready(self):
        issued = self.issued
        super()._issue_ready()
        for unit in self.order[issued : self.issued]:
            unit.gradients.mul_(self.group.size)


def wrong(group):
    out = {}
    for kind in (NeverGathers, ClipsItsOwn, NeverDivides):
        model = toys.toy()
        groups = parameter_groups(model, 0.1)
        zero = kind(model, group, 2)
        out[kind.__name__] = toys.train(group, zero, ZeroOptimizer(zero, groups, toys.ADAMW), 3)
    model = toys.toy()
    zero = Zero3(model, group)  # every parameter decays: the groups did not survive
    flat = [{"params": list(model.parameters()), "weight_decay": 0.1}]
    out["one group"] = toys.train(group, zero, ZeroOptimizer(zero, flat, toys.ADAMW), 3)
    return out


def test_wrong_versions_are_told_apart():
    want = toys.one_process(3)
    for name, got in launch(wrong, ranks=2, timeout=60)[0].items():
        with pytest.raises(AssertionError):
            toys.assert_follows(got, want)
            raise RuntimeError(f"{name} was not told apart")


def refused(group):
    model = toys.toy()
    optimizer = partial(ZeroOptimizer, Zero(model, group), parameter_groups(model, 0.1))
    other = toys.toy()
    attempts = {
        "Zero3 is stage 3": lambda: Zero(other, group, 3),
        "whole matrices": lambda: optimizer(torch.optim.Adafactor),
        "two units": lambda: Zero3(other, group, [other.blocks[0], other.blocks]),
        "offload them in stage 3": lambda: optimizer(toys.ADAMW, MemoryStore(), ["parameters"]),
        "did you mean": lambda: optimizer(toys.ADAMW, MemoryStore(), ["gradient"]),
    }
    for message, attempt in attempts.items():
        with pytest.raises(InputError, match=message):
            attempt()


def test_what_cannot_work_is_refused():
    launch(refused, ranks=1)
