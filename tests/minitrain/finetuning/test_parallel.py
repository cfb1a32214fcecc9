"""Adapters on several ranks: what one process computes, its gradients, and its adapter in the end."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from minitrain.errors import InputError
from minitrain.finetuning.model import adapt, adapter_groups
from minitrain.finetuning.peft_files import adapter_tensors
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.parallel.tensor.layers import tensor_parallel
from minitrain.parallel.zero.optimizer import ZeroOptimizer
from minitrain.parallel.zero.sharded import Zero
from minitrain.parallel.zero.stage_3 import Zero3
from minitrain.ranks.launch import launch

from .peft_peers import shaken

CONFIG = ModelConfig(21, 16, 2, heads=4, kv_heads=2, ffn_size=24, qkv_bias=True)
ONE_KEY_HEAD = ModelConfig(21, 16, 1, heads=4, kv_heads=1, ffn_size=24)
EXPERTS = replace(CONFIG, experts=4, expert_ffn_size=12)
ROWS, LENGTH, STEPS = 4, 8, 3
PATIENT = 240.0  # seconds, of a launch that has busy neighbours
TARGETS = ("q", "k", "v", "o", "gate", "up", "down", "head")
METHODS = {
    "lora": {"rank": 3, "targets": TARGETS},
    "dora": {"rank": 2, "targets": TARGETS},
    "pissa": {"rank": 2, "targets": TARGETS},
    "ia3": {"targets": TARGETS, "inputs": ("k", "gate", "down")},
    "bitfit": {"targets": TARGETS},
    "houlsby": {"bottleneck": 4},
    "parallel": {"bottleneck": 4, "targets": ("attention", "mlp")},
    "norm": {},
    "prefix": {"tokens": 3, "width": 6},
    "p-tuning-v2": {"tokens": 3},
    "prompt": {"tokens": 3},
}
EXPERT = {"rank": 2, "targets": "k,experts"}  # by lora


def adapted(method, config=CONFIG, **options):
    """Alike on every rank, and its adapter not at its start, where B is zero."""
    if method == "experts":
        method, config, options = "lora", EXPERTS, EXPERT
    options = options or METHODS[method]
    return shaken(adapt(build(config, dtype=torch.float64, seed=1), method, **options))


def text(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(CONFIG.vocab_size, (ROWS, LENGTH + 1), generator=generator)


def loss_of(model, rows):
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


ADAMW = partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.0)


def one_process(method):
    """The adapter after some steps, and the gradients of the first."""
    model, gradients = adapted(method), {}
    optimizer = ADAMW(adapter_groups(model, 1e-2))
    for step in range(STEPS):
        loss_of(model, text(step)).backward()
        gradients = gradients or {
            n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad
        }
        optimizer.step()
        optimizer.zero_grad()
    return adapter_tensors(model), gradients


def under_zero(group, method, stage):
    model = adapted(method)
    zero = Zero3(model, group) if stage == 3 else Zero(model, group, stage)
    optimizer = ZeroOptimizer(zero, adapter_groups(model, 1e-2), ADAMW)
    held = sum(p.numel() for g in optimizer.param_groups for p in g["params"])
    for step in range(STEPS):
        loss_of(zero, text(step).chunk(group.size)[group.rank]).backward()
        zero.finish()
        optimizer.step()
        optimizer.zero_grad()
    state = sum(s["exp_avg"].numel() for s in optimizer.state.values())
    with zero.gathered():
        return {n: t.clone() for n, t in adapter_tensors(model).items()}, held, state


def split_adapted(group):
    with pytest.raises(InputError, match="would be lost: merge it before"):
        tensor_parallel(adapted("lora"), group)


def test_tensor_parallelism_does_not_lose_an_adapter():
    launch(split_adapted, ranks=2)


def every_zero(group, cases):
    return {case: under_zero(group, *case) for case in cases}


def test_zero_trains_the_adapter_as_one_process_does():
    cases = [("lora", 1), ("lora", 2), *((method, 3) for method in (*METHODS, "experts"))]
    results = launch(every_zero, cases, ranks=2, timeout=PATIENT)
    for case in cases:
        want, gradients = one_process(case[0])
        whole = sum(g.numel() for g in gradients.values())
        for result in results:
            found, held, state = result[case]
            assert state == held and held <= whole / 2 + 64, "each rank has half, and padding"
            for name, tensor in want.items():
                same = torch.allclose(found[name], tensor, rtol=1e-9, atol=1e-11)
                assert same, (case, name)
