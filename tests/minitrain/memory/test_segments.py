"""A Transformer recomputed in any way: the same bits, the formulas' bytes, the formulas' FLOPs."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.measure.clock import threads
from minitrain.measure.flops import counted_flops, hardware_flops, model_flops
from minitrain.measure.memory import MemoryLedger
from minitrain.measure.predicted_memory import predicted_activations
from minitrain.memory.placement import (
    Segment,
    least_budget,
    optimal_plan,
    plan_peak,
    sqrt_plan,
    uniform_plan,
)
from minitrain.memory.recompute import Checkpoint
from minitrain.memory.segments import Segmented, block_layers, recompute
from minitrain.memory.selective import save_matmuls
from minitrain.model.attention.grouped_query import attention_naive
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer, build, one_after_another

aten = torch.ops.aten
SMALL = ModelConfig(11, 32, layers=5, heads=4, kv_heads=2, ffn_size=56)
MIXED = (Segment(0, 2), Segment(2, 3, "none"), Segment(3, 5, "selective"))
WAYS = ["selective", "full", 1, 2, sqrt_plan(5), MIXED]


@pytest.fixture(autouse=True)
def one_thread():
    with threads(1):
        yield


def gradients(model: Transformer, packed: bool = False) -> list[torch.Tensor]:
    model.zero_grad()
    tokens = torch.arange(2 * 16).view(2, 16) % model.config.vocab_size
    documents = torch.arange(16).div(5, rounding_mode="floor").expand(2, 16)
    model(tokens, documents if packed else None).double().square().mean().backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_gradients_are_bit_equal(how):
    for changes in ({}, {"tied": True, "window": 6, "qkv_bias": True}):
        model = build(replace(SMALL, **changes))
        for packed in (False, True):
            want = gradients(recompute(model, "none"), packed)
            got = gradients(recompute(model, how), packed)
            assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_names_weights_and_copies_are_untouched():
    plain, model = build(SMALL), recompute(build(SMALL), "selective")
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_modules()] == [n for n, _ in plain.named_modules()]
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            copied.blocks[0].mlp.up.weight.add_(1)
        gradients(copied)
        assert model.blocks[0].mlp.up.weight.grad is None, "a copy runs its own blocks"
        assert not torch.equal(copied.blocks[0].mlp.up.weight, model.blocks[0].mlp.up.weight)
    assert recompute(model, "none").stack is one_after_another


@pytest.mark.parametrize(
    "how, message",
    [
        ("fully", "did you mean 'full'"),
        (0, "every 0-th block"),
        (sqrt_plan(4), "has 5"),
        ((Segment(0, 3), Segment(2, 5)), "must run once"),
        ((Segment(0, 5, "half"),), "mode of a segment"),
    ],
)
def test_what_cannot_be_done_is_refused(how, message):
    model = build(SMALL)
    with pytest.raises(InputError, match=message):
        recompute(model, how)
    assert model.stack is one_after_another


# ---- FLOPs ----


def extra_flops(model: Transformer, tokens: torch.Tensor) -> float:
    needed = model_flops(model.config, *tokens.shape)
    return counted_flops(lambda: model(tokens).sum().backward()) / needed - 1


def test_full_recomputation_costs_a_third_and_less_when_it_stops_early():
    model, tokens = build(SMALL), torch.zeros(2, 16, dtype=torch.int64)
    model.stack = Segmented(uniform_plan(SMALL.layers, "full"), stop_early=False)
    whole = extra_flops(model, tokens)
    assert whole == hardware_flops(SMALL, 2, 16, "full") / model_flops(SMALL, 2, 16) - 1
    assert whole == pytest.approx(1 / 3, abs=0.02)
    spared = 2 * 2 * 16 * SMALL.layers * SMALL.hidden_size * SMALL.ffn_size  # each block's `down`
    early = extra_flops(recompute(model, "full"), tokens)
    assert early == pytest.approx(whole - spared / model_flops(SMALL, 2, 16), abs=1e-9)
    assert extra_flops(recompute(model, 2), tokens) == pytest.approx(early * 3 / 5, abs=1e-9)


def test_selective_repeats_attention_where_it_is_written_out_and_nothing_else():
    """Korthikanti et al. count T/6D, 2.8% for GPT-3's T/D = 1/6; attention's forward, which is what
    is repeated, is a third of that."""
    wide = replace(SMALL, hidden_size=96, ffn_size=256, kv_heads=4, head_size=24)
    model, tokens = build(wide), torch.zeros(2, 16, dtype=torch.int64)
    assert extra_flops(recompute(model, "selective"), tokens) == 0, "the fused kernel's is kept"
    for block in model.blocks:
        block.attention.kernel = attention_naive
    share = extra_flops(recompute(model, "selective"), tokens)
    assert share == hardware_flops(wide, 2, 16, "selective") / model_flops(wide, 2, 16) - 1
    ratio = 16 / wide.hidden_size
    assert ratio == pytest.approx(1 / 6)
    assert share == pytest.approx(ratio / 18, rel=0.1) == pytest.approx(ratio / 6, abs=0.02)
    recompute(model, "selective", lambda op: op is aten.bmm.default or save_matmuls(op))
    assert extra_flops(model, tokens) == 0, "kept scores are not repeated, and fill memory"


# ---- bytes ----


def saved_bytes(model: nn.Module, *inputs) -> int:
    with MemoryLedger(model) as ledger:
        out = model(*inputs)
        saved = ledger.now["activations"]
        del out
    return saved


@pytest.mark.parametrize("share", [0.1, 0.4, 0.8])
def test_the_optimal_plan_keeps_its_budget_in_the_ledger(share):
    """Forward exactly; in backward, beside the blocks' tensors, gradients are on their way."""
    batch, length = 8, 64
    layers = block_layers(SMALL, batch, length)
    most = sum(layer.saved_bytes for layer in layers)
    budget = least_budget(layers) + share * (most - least_budget(layers))
    plan = optimal_plan(layers, budget)
    assert plan_peak(plan, layers) <= budget < most
    tokens = torch.zeros(batch, length, dtype=torch.int64)
    rest = predicted_activations(SMALL, batch, length) - most
    assert saved_bytes(recompute(build(SMALL), plan), tokens) <= budget + rest
    on_their_way = layers[0].saved_bytes
    assert held_at_the_peak(plan, tokens) <= budget + rest + on_their_way
    if share < 0.5:
        assert held_at_the_peak("none", tokens) > budget + rest + on_their_way


def held_at_the_peak(how, tokens: torch.Tensor) -> int:
    """Bytes beside parameters and their gradients, over a step."""
    model = recompute(build(SMALL), how)
    with MemoryLedger(model) as ledger:
        model(tokens).sum().backward()
    return ledger.peak["activations"] + ledger.peak["temporaries"]


# ---- experts ----


class Router(nn.Module):
    """A choice that falls otherwise the second time, as a tie or another kernel's rounding may."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.runs = 0

    def forward(self, x):
        scores = self.gate(x).softmax(dim=-1)  # (B, E)
        self.runs += 1
        nearly = scores.detach() * (1 if self.runs == 1 else -1)
        weight, chosen = nearly.topk(2)  # (B, 2)
        outs = torch.stack([expert(x) for expert in self.experts], dim=1)  # (B, E, 8)
        picked = outs.gather(1, chosen[..., None].expand(-1, -1, 8)).tanh()
        return (picked * scores.gather(1, chosen)[..., None] * weight[..., None]).sum(dim=1)


def test_a_routers_choice_is_kept():
    def run(way):
        model, x = Router(), torch.randn(16, 8, generator=torch.manual_seed(1))
        way(model, x).square().sum().backward()
        return [p.grad for p in model.parameters()]

    want = run(lambda model, x: model(x))
    without_topk = Checkpoint(lambda op: save_matmuls(op) and op is not aten.topk.default)
    for way, equal in ((Checkpoint(save_matmuls), True), (without_topk, False)):
        assert all(torch.equal(a, b) for a, b in zip(run(way), want)) == equal
