from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from minitrain.errors import InputError
from minitrain.measure.traffic import ring_bytes
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.parallel.layout import layout_of
from minitrain.parallel.tensor.layers import (
    SharedRows,
    heads_of,
    share,
    shared_rows,
    tensor_parallel,
)
from minitrain.parallel.tensor.vocabulary import vocabulary_parallel_loss
from minitrain.ranks.launch import launch
from minitrain.training.loss import token_weighted_loss

BATCH, LENGTH, TOTAL = 2, 8, 13

# 21 tokens: a vocabulary that no number of ranks here divides, but for 1 and 3
CONFIGS = {
    "one head each": ModelConfig(21, 16, 2, heads=4, kv_heads=4, ffn_size=24),
    "grouped": ModelConfig(21, 16, 2, heads=4, kv_heads=2, ffn_size=24, qkv_bias=True, tied=True),
    "one key head": ModelConfig(21, 16, 1, heads=4, kv_heads=1, ffn_size=24, qkv_bias=True),
    "window": ModelConfig(21, 16, 1, heads=4, kv_heads=2, ffn_size=24, window=3),
}
UNEVEN = {
    2: ModelConfig(21, 12, 1, heads=6, kv_heads=3, ffn_size=12),
    3: ModelConfig(21, 24, 1, heads=12, kv_heads=4, ffn_size=12, qkv_bias=True),
}

SPLITS = {
    "one head each": ModelConfig(21, 24, 1, heads=12, kv_heads=12, ffn_size=12),
    "grouped": ModelConfig(21, 24, 1, heads=12, kv_heads=4, ffn_size=12, qkv_bias=True),
    "one key head": ModelConfig(21, 24, 1, heads=12, kv_heads=1, ffn_size=12),
}


def batch():
    """tokens, targets with some left out, and two documents a row."""
    generator = torch.Generator().manual_seed(0)
    tokens, targets = torch.randint(21, (2, BATCH, LENGTH), generator=generator)
    targets[0, :3] = -100
    documents = (torch.arange(LENGTH) >= torch.tensor([[3], [5]])).long()
    return tokens, targets, documents


def whole_model(config):
    return build(config, dtype=torch.float64, seed=1)


def one_process(config):
    """Loss, gradients, their norm, and the state after a step."""
    model = whole_model(config)
    tokens, targets, documents = batch()
    loss = token_weighted_loss(model(tokens, documents), targets, TOTAL)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    norm = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss.detach(), gradients, norm, model.state_dict()


def nothing(model):
    pass


def run(group, config, sequence, wrong=nothing, reduce_parts=True):
    """The same on N ranks, by what the layouts say; each gradient as this rank's and the slice it
    must equal."""
    want_loss, whole, want_norm, want_state = one_process(config)
    model = tensor_parallel(whole_model(config), group, sequence)
    wrong(model)
    tokens, targets, documents = batch()
    logits = model(tokens, documents)
    loss = vocabulary_parallel_loss(logits, targets, TOTAL, group, config.vocab_size)
    loss.backward()
    pairs = {"loss": (loss.detach(), want_loss)}
    squares = torch.zeros(2, dtype=torch.float64)  # of what is split, and of what all have
    for name, p in model.named_parameters():
        layout = layout_of(p)
        if "tp" in layout.partial and reduce_parts:
            group.all_reduce(p.grad)
        is_split = "tp" in layout.split
        pairs[name] = p.grad.clone(), layout.slice.of(whole[name]) if is_split else whole[name]
        counted = layout.slice.counted(p.grad) if is_split else p.grad
        squares[0 if is_split else 1] += counted.square().sum()
    norm = (group.all_reduce(squares[:1].clone()) + squares[1]).sqrt()[0]
    pairs["norm"] = norm, want_norm
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    state = gathered(model, group)
    assert set(state) == set(want_state)
    return pairs | {f"{name} after a step": (state[name], want_state[name]) for name in state}


@torch.no_grad()
def gathered(model, group):
    """The one-process state: each rank writes the rows it owns into zeros, and all are added up."""
    whole = dict(model.state_dict())
    for name, parameter in model.named_parameters(remove_duplicate=False):
        part = layout_of(parameter).slice
        if part is not None:
            whole[name] = group.all_reduce(part.in_whole(parameter.detach()))
    return whole


def failures(results):
    """The names of what does not agree on some rank."""
    return {
        name
        for result in results
        for name, (got, want) in result.items()
        if got.shape != want.shape or not torch.allclose(got, want, rtol=1e-10, atol=1e-12)
    }


def every_config(group, configs):
    return {
        f"{name}: {key}{', sequence' if sequence else ''}": pair
        for name, config in configs.items()
        for sequence in (False, True)
        for key, pair in run(group, config, sequence).items()
    }


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_loss_gradients_norm_and_step_equal_one_process(ranks):
    results = launch(every_config, CONFIGS, ranks=ranks)
    assert failures(results) == set() and len(results[0]) > 100


def uneven(group):
    return run(group, UNEVEN[group.size], sequence=LENGTH % group.size == 0)


@pytest.mark.parametrize("ranks", [2, 3])
def test_key_heads_that_ranks_share_unevenly(ranks):
    assert failures(launch(uneven, ranks=ranks)) == set()


# ---- plausible and wrong: each of these must be told from the right one ----


def one_row_off(model):
    if model.embed.part.start:
        model.embed.part = replace(model.embed.part, start=model.embed.part.start + 1)


def no_shared_sums(model):
    for block in model.blocks:
        block.attention.shared = SharedRows((), ())


def copies_counted_twice(model):
    for block in model.blocks:
        for layer in (block.attention.k, block.attention.v):
            for parameter in layer.parameters():
                layout = layout_of(parameter)
                all_rows = replace(layout.slice, owned=None)
                parameter.mesh_layout = replace(layout, slice=all_rows)


def wrong_versions(group):
    one_head = CONFIGS["one key head"]
    return {
        "parts": run(group, CONFIGS["grouped"], True, reduce_parts=False),
        "off by one": run(group, CONFIGS["grouped"], False, one_row_off),
        "shared": run(group, one_head, False, no_shared_sums),
        "twice": run(group, one_head, False, copies_counted_twice),
    }


def test_wrong_versions_are_told_apart():
    results = launch(wrong_versions, ranks=2)
    failed = {key: failures([result[key] for result in results]) for key in results[0]}
    norms = {name for name in failed["parts"] if "norm.weight" in name or "_norm" in name}
    assert norms and failed["parts"] == norms | {"norm"}, "the norms' gradients, and nothing else"
    assert "loss" in failed["off by one"]
    keys = {f"blocks.0.attention.{z}.{p}" for z in "kv" for p in ("weight", "bias")}
    keys -= {"blocks.0.attention.k.bias"}  # its gradient is 0: softmax does not see it
    assert keys <= failed["shared"] and "loss" not in failed["shared"]
    assert "norm" in failed["twice"] and "loss" not in failed["twice"]


def refused(group):
    for changes, message in (
        (
            {"heads": 3, "kv_heads": 3, "hidden_size": 12},
            r"3 heads .* 2 ranks: use 2 or 4, or 3 ranks",
        ),
        ({"ffn_size": 25}, r"25 features of the MLP .* 2 ranks: use 24 or 26"),
    ):
        model = whole_model(replace(CONFIGS["one head each"], head_size=None, **changes))
        with pytest.raises(InputError, match=message):
            tensor_parallel(model, group)
        assert isinstance(model.embed, nn.Embedding), "nothing has been changed"
    model = tensor_parallel(whole_model(CONFIGS["grouped"]), group, sequence=True)
    with pytest.raises(InputError, match="use 6 or 8"):
        model(batch()[0][:, :7])


def test_what_cannot_be_split_is_refused():
    launch(refused, ranks=2)


# ---- what is sent ----


def sent(group, config, sequence):
    """Bytes and counts of operations, forward and backward: of a layer, and of the model's ends."""
    model = tensor_parallel(build(config), group, sequence)
    stream = torch.randn(BATCH, 12 // (group.size if sequence else 1), 24, requires_grad=True)
    out = []

    def measure(step):
        before = len(group.trace.ops)
        result = step()
        ops = group.trace.ops[before:]
        out.append((sum(op.sent_bytes for op in ops), sorted(op.kind for op in ops)))
        return result

    y = measure(lambda: model.blocks[0](stream, *model.surroundings(stream)))
    measure(lambda: y.sum().backward())
    tokens = torch.randint(21, (BATCH, 12), generator=torch.Generator().manual_seed(0))

    def ends():
        logits = model.head(model.norm(model.embed(tokens)))
        return vocabulary_parallel_loss(logits, tokens, 1, group, config.vocab_size)

    loss = measure(ends)
    measure(loss.backward)
    return out


def every_case(group):
    return {
        (name, sequence): sent(group, config, sequence)
        for name, config in SPLITS.items()
        for sequence in (False, True)
    }


def closed_forms(config, ranks, sequence, rank):
    """(layer forward, its backward, ends forward, their backward) of `layers.py`'s docstring, with
    the gradients of shared key/value heads and two numbers a token for the loss."""
    stream = 4 * BATCH * 12 * config.hidden_size
    whole, split = (ring_bytes(kind, stream, ranks) for kind in ("all_reduce", "all_gather"))
    head = 4 * 2 * config.head_size * (config.hidden_size + config.qkv_bias)
    holders = heads_of(rank, ranks, config.heads, config.kv_heads).shared.values()
    shared = sum(ring_bytes("all_reduce", head, len(ranks_)) for ranks_ in holders)
    loss = ring_bytes("all_gather", ranks * 4 * 2 * BATCH * 12, ranks)
    if sequence:
        return [4 * split, 6 * split + shared, 2 * split + loss, 3 * split]
    return [2 * whole, 2 * whole + shared, whole + loss, whole]


@pytest.mark.parametrize("ranks", [3, 4])
def test_bytes_are_the_closed_forms_exactly(ranks):
    for rank, cases in enumerate(launch(every_case, ranks=ranks)):
        for (name, sequence), measured in cases.items():
            want = closed_forms(SPLITS[name], ranks, sequence, rank)
            assert [sent_bytes for sent_bytes, _ in measured] == want, (name, sequence)
            if name == "one head each":
                forward, backward = (kinds for _, kinds in measured[:2])
                each = ["all_gather"] * 2 + ["reduce_scatter"] * 2
                assert forward == (each if sequence else ["all_reduce"] * 2)
                assert backward == (["all_gather"] * 2 + each if sequence else ["all_reduce"] * 2)


# ---- heads over ranks ----


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_every_query_reads_its_own_head_and_every_head_has_one_owner(group_size, kv_heads, data):
    heads = group_size * kv_heads
    ranks = data.draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    plans = [heads_of(rank, ranks, heads, kv_heads) for rank in range(ranks)]
    assert [query for plan in plans for query in plan.queries] == list(range(heads))
    assert [key for plan in plans for key in plan.owned] == list(range(kv_heads))
    for rank, plan in enumerate(plans):
        read = [plan.keys[place] for place in plan.reads]
        assert read == [query // group_size for query in plan.queries]
        assert set(read) == set(plan.keys), "no head is held that nobody reads"
        for key in plan.keys:
            holders = tuple(r for r in range(ranks) if key in plans[r].keys)
            assert plan.shared.get(key, (rank,)) == holders
        if plan.is_grouped:
            each = len(plan.queries) // len(plan.keys)
            assert read == [key for key in plan.keys for _ in range(each)]


def gradients(group, heads, kv_heads, size):
    """Each rank weighs the rows it holds by 1 + its number; what they get, and what was sent."""
    plan = heads_of(group.rank, group.size, heads, kv_heads)
    weight = torch.zeros(len(plan.keys) * size, 3, requires_grad=True)
    bias = torch.zeros(len(plan.keys) * size, requires_grad=True)
    rows = shared_rows(group, plan, size)
    ((shared_weight, shared_bias),) = share([(weight, bias)], rows)
    ((shared_weight.sum() + shared_bias.sum()) * (1 + group.rank)).backward()
    held = [sum(1 + r for r in plan.shared.get(key, (group.rank,))) for key in plan.keys]
    return weight.grad, bias.grad, held, group.trace.count("all_reduce")
