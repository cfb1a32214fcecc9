"""ZeRO 1 to 3 follow one process, and DDP, in every gradient, norm and weight; and hold what the
paper's table 1 says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from minitrain.errors import InputError
from minitrain.measure.memory import MemoryLedger
from minitrain.model.config import ModelConfig, parameter_count
from minitrain.model.transformer import build
from minitrain.parallel.ddp import DDP, broadcast_parameters
from minitrain.parallel.launch import launch
from minitrain.parallel.zero import Zero, deal, naive_zero1_step
from minitrain.parallel.zero3 import Zero3
from minitrain.parallel.zero_optimizer import ZeroOptimizer
from minitrain.training.loop import data_parallel, train_step
from minitrain.training.optimizers import clip_by_global_norm, parameter_groups
from minitrain.training.stores import DiskStore, MemoryStore

from . import zero_toys as toys

STEPS = 20


def every_variant(group, folder):
    """Three ranks, which cut parameters and leave padding: each stage, each thing that it meets."""
    out = {"DDP": toys.ddp(group, STEPS)}
    for stage in (1, 2, 3):
        also = ((), ("gradients",), ("gradients", "parameters"))[stage - 1]
        disk = DiskStore(Path(folder) / f"{stage}-{group.rank}")
        variants = {
            "plain": {},
            "recomputed": {"recompute": "units"},
            "recomputed inside": {"recompute": "inside"},
            "offloaded": {"store": MemoryStore(), "also": also},
            "offloaded to disk, recomputed": {"store": disk, "also": also, "recompute": "units"},
        }
        for name, options in variants.items():
            out[f"stage {stage} {name}"] = toys.train(
                group, *toys.sharded(group, stage, **options), STEPS
            )
    return out


def test_every_stage_follows_one_process_for_twenty_steps(tmp_path):
    want = toys.one_process(STEPS)
    for results in launch(every_variant, str(tmp_path), ranks=3, timeout=200):
        assert len(results) == 16
        for name, got in results.items():
            try:
                toys.assert_follows(got, want)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error


# ---- what a rank holds ----

BYTES_CONFIG = ModelConfig(64, 32, layers=4, heads=2, kv_heads=1, ffn_size=64)


def held(group, stage, dtype, options):
    """(bytes between backward and step, bytes at the peak, of the unit) of a third step."""
    model = build(BYTES_CONFIG, dtype=dtype)
    if stage == 0:
        zero = DDP(model, group)
        optimizer = torch.optim.AdamW(model.parameters())
    else:
        units = [model.embed, *model.blocks, model.head]
        zero = Zero3(model, group, units, prefetch=False, **options) if stage == 3 else Zero(
            model, group, stage, bucket_bytes=30_000, **options
        )
        optimizer = ZeroOptimizer(zero, [{"params": list(model.parameters())}], torch.optim.AdamW)
    ledger = MemoryLedger(zero, getattr(optimizer, "inner", optimizer))
    rows = torch.zeros(1, 3, dtype=torch.int64)
    with ledger:
        for _ in range(3):
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
            for (before, highest, unit), bound in zip(stages, want[precision]):
                slack = 4000  # norms, padding, step counters, the batch
                assert bound - slack < before < bound + unit + slack, (precision, before, bound)
        plain, sharded = got["float32"][0][0], got["float32"][3][0]
        assert plain > 3 * sharded, "what does not shard is told by its bytes"
