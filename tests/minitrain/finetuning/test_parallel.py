"""Adapters on several ranks: what one process computes, its gradients, and its adapter in the end."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from minitrain.errors import InputError
from minitrain.finetuning.merging import disabled, merge, unload
from minitrain.finetuning.model import adapt, adapter_groups
from minitrain.finetuning.peft_files import adapter_tensors
from minitrain.finetuning.tensor import (
    ColumnBitFit,
    ColumnIA3,
    ColumnLoRA,
    RowLoRA,
    tensor_parallel_adapted,
    whole_adapter,
)
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.parallel.layout import layout_of
from minitrain.parallel.tensor.vocabulary import vocabulary_parallel_loss
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


# ---- tensor parallelism ----


def cut(group, method, config, sequence, break_it=None, options=None):
    """Pairs of what this rank has and what it should: loss, gradients, and the adapter later on."""
    options = options or METHODS[method]
    whole = adapted(method, config, **options)
    rows = text(0)
    want = loss_of(whole, rows)
    want.backward()
    wanted = dict(whole.named_parameters())
    model = tensor_parallel_adapted(adapted(method, config, **options), group, sequence)
    alone = group.subgroup([group.rank])
    if break_it is not None:
        break_it(model, alone)
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
        layout = layout_of(parameter)
        own = name if name in wanted else name.replace(".beside.", ".adapter.")
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
        f"{method} {index} {sequence} {name}": pair
        for method in METHODS
        for index, config in enumerate(configs)
        for sequence in (False, True)
        if not (method == "prompt" and sequence)
        for name, pair in cut(group, method, config, sequence).items()
    }


def test_what_is_cut_is_one_processs():
    results = launch(every_cut, [CONFIG, ONE_KEY_HEAD], ranks=2, timeout=PATIENT)
    assert wrong(results) == set() and len(results[0]) > 500
    for method in METHODS:
        trained = [name for name in results[0] if name.startswith(f"{method} 0 False")]
        assert len(trained) > 2 and all(results[0][name][1].any() for name in trained)


def test_one_rank_has_all_of_it_and_experts_stay_whole():
    assert wrong(launch(every_cut, [ONE_KEY_HEAD], ranks=1, timeout=PATIENT)) == set()
    options = {"rank": 2, "targets": ("k", "o", "experts")}
    for sequence in (False, True):
        results = launch(cut, "lora", EXPERTS, sequence, None, options, ranks=2)
        assert wrong(results) == set()
        assert "blocks.1.mlp.experts.adapter.down_lora_A" in results[0]


# A plausible wrong version of each, and one of the gradients or losses that it gets wrong.


def no_sum_of_du(model, alone):
    for module in model.modules():
        if isinstance(module, ColumnLoRA):
            module.group = alone  # a copy whose gradient nobody sums


def own_lengths(model, alone):
    for module in model.modules():
        if isinstance(module, RowLoRA):
            module.whole_squares = lambda squares: squares  # of its own columns


def nothing_shared(model, alone):
    for module in model.modules():
        if isinstance(module, (ColumnIA3, ColumnBitFit)):
            module.shared = type(module.shared)((), ())


def counted_as_whole(model, alone):
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.mesh_layout = replace(layout_of(parameter), partial=frozenset())


ERRORS = [  # method, heads, sequence, what is wrong, and where it shows
    ("lora", CONFIG, False, no_sum_of_du, "blocks.0.attention.q.beside.lora_A"),
    ("dora", CONFIG, False, own_lengths, "loss"),
    ("ia3", ONE_KEY_HEAD, False, nothing_shared, "blocks.0.attention.v.beside.ia3_l"),
    ("bitfit", ONE_KEY_HEAD, False, nothing_shared, "blocks.0.attention.v.beside.delta"),
    ("p-tuning-v2", CONFIG, False, counted_as_whole, "soft_prompt.table"),
    ("houlsby", CONFIG, True, counted_as_whole, "blocks.0.mlp.down.adapter.up"),
]


def every_error(group):
    return {
        f"{method} {where}": cut(group, method, config, sequence, break_it)
        for method, config, sequence, break_it, where in ERRORS
    }


def test_a_plausible_wrong_version_is_seen():
    results = launch(every_error, ranks=2, timeout=PATIENT)
    for method, _, _, break_it, where in ERRORS:
        bad = wrong([result[f"{method} {where}"] for result in results])
        assert where in bad, (method, break_it.__name__)


@pytest.mark.parametrize(
    "method, options, words",
    [
        ("lora", {"dropout": 0.1}, "dropout=0"),
        ("lora", {"targets": "embed"}, "embedding"),
        ("houlsby", {"targets": "q"}, "split over the ranks"),
        ("parallel", {"targets": "o"}, "give sublayers"),
        ("prompt", {}, "sequence=False"),
        ("full", {}, "full fine-tuning"),
        (None, {}, "has no adapter"),
    ],
)
def test_what_is_not_cut_is_refused(method, options, words):
    model = build(CONFIG) if method is None else adapt(build(CONFIG), method, **options)
    before = [name for name, _ in model.named_parameters()]
    with pytest.raises(InputError, match=words):
        tensor_parallel_adapted(model, None, sequence=method == "prompt")
    assert [name for name, _ in model.named_parameters()] == before


def misused(group):
    model = tensor_parallel_adapted(adapted("bitfit"), group)
    for use in (merge, unload, adapter_tensors, lambda m: disabled(m).__enter__()):
        with pytest.raises(InputError, match="whole_adapter"):
            use(model)


def test_a_part_of_an_adapter_is_not_saved_merged_or_taken_off():
    launch(misused, ranks=2)
