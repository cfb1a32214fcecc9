"""Adapters on several ranks: what one process computes, its gradients, and its adapter in the end."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from minitrain.errors import InputError
from minitrain.finetuning.adapt import adapt
from minitrain.finetuning.lora_plus import adapter_groups
from minitrain.finetuning.peft_files import adapter_tensors
from minitrain.finetuning.tensor import ColumnLoRA, tensor_parallel_adapted, whole_adapter
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.parallel.layout import layout_of
from minitrain.parallel.tensor.vocabulary import vocabulary_parallel_loss
from minitrain.parallel.zero.optimizer import ZeroOptimizer
from minitrain.parallel.zero.stage_3 import Zero3
from minitrain.parallel.zero.stages_1_2 import Zero
from minitrain.ranks.launch import launch

CONFIG = ModelConfig(21, 16, 2, heads=4, kv_heads=2, ffn_size=24, qkv_bias=True)
ONE_KEY_HEAD = ModelConfig(21, 16, 1, heads=4, kv_heads=1, ffn_size=24)
ROWS, LENGTH, STEPS = 4, 8, 3
TARGETS = ("q", "k", "v", "o", "gate", "up", "down", "head")
METHODS = {
    "lora": {"rank": 3, "targets": TARGETS},
    "dora": {"rank": 2, "targets": "q,down"},
    "ia3": {},
    "prefix": {"tokens": 3, "width": 6},
    "prompt": {"tokens": 3},
    "parallel": {"bottleneck": 4},
}


def adapted(method, config=CONFIG, **options):
    """Alike on every rank, and its adapter not at its start, where B is zero."""
    model = adapt(
        build(config, dtype=torch.float64, seed=1), method, **(options or METHODS[method])
    )
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter.add_(noise * 0.1)
    return model


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


def every_zero(group, cases):
    return {case: under_zero(group, *case) for case in cases}


def test_zero_trains_the_adapter_as_one_process_does():
    cases = [("lora", 1), ("lora", 2), *((method, 3) for method in METHODS)]
    results = launch(every_zero, cases, ranks=2)
    for case in cases:
        want, gradients = one_process(case[0])
        whole = sum(g.numel() for g in gradients.values())
        for result in results:
            found, held, state = result[case]
            assert state == held and held <= whole / 2 + 64, "each rank has half, and padding"
            for name, tensor in want.items():
                torch.testing.assert_close(
                    found[name], tensor, rtol=1e-9, atol=1e-11, msg=f"{case} {name}"
                )


# ---- tensor parallelism ----


def cut(group, config, sequence, break_it=False):
    """Pairs of what this rank has and what it should: loss, gradients, and the adapter later on."""
    options = {"rank": 3, "targets": TARGETS}
    whole = adapted("lora", config, **options)
    rows = text(0)
    want = loss_of(whole, rows)
    want.backward()
    wanted = dict(whole.named_parameters())
    model = tensor_parallel_adapted(adapted("lora", config, **options), group, sequence)
    if break_it:
        for module in model.modules():
            if isinstance(module, ColumnLoRA):
                module.group = group.subgroup([group.rank])  # a copy whose gradient nobody sums
    total = rows[:, 1:].numel()
    loss = vocabulary_parallel_loss(
        model(rows[:, :-1]), rows[:, 1:], total, group, config.vocab_size
    )
    loss.backward()
    pairs = {"loss": (loss.detach(), want.detach())}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert parameter.grad is None, name
            continue
        layout, own = layout_of(parameter), name.replace(".beside.", ".adapter.")
        if "tp" in layout.partial:
            group.all_reduce(parameter.grad)
        gradient = wanted[own].grad
        part = gradient if layout.slice is None else layout.slice.of(gradient)
        pairs[name] = parameter.grad.clone(), part
    for each in (model, whole):
        ADAMW([p for p in each.parameters() if p.requires_grad]).step()
    bare = build(config, dtype=torch.float64, seed=1)
    gathered, expected = adapter_tensors(whole_adapter(bare, model, group)), adapter_tensors(whole)
    return pairs | {n: (gathered[n], expected[n]) for n in expected}


def wrong(results):
    return {
        name
        for result in results
        for name, (got, want) in result.items()
        if got.shape != want.shape or not torch.allclose(got, want, rtol=1e-9, atol=1e-12)
    }


def every_cut(group, configs):
    return {
        f"{index} {sequence} {name}": pair
        for index, config in enumerate(configs)
        for sequence in (False, True)
        for name, pair in cut(group, config, sequence).items()
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_tensor_parallel_lora_is_one_processs(ranks):
    results = launch(every_cut, [CONFIG, ONE_KEY_HEAD], ranks=ranks)
    assert wrong(results) == set() and len(results[0]) > 60


def test_without_the_sum_of_du_it_is_another_gradient():
    bad = wrong(launch(cut, CONFIG, False, True, ranks=2))
    assert "blocks.0.attention.q.beside.lora_A" in bad and "loss" not in bad


def test_what_is_not_cut_is_refused():
    for method, options, words in (
        ("dora", {}, "use one of them"),
        ("lora", {"dropout": 0.1}, "dropout=0"),
        ("lora", {"targets": "embed"}, "embedding"),
    ):
        model = adapt(build(CONFIG), method, **options)
        with pytest.raises(InputError, match=words):
            tensor_parallel_adapted(model, None)
