from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.model.attention.grouped_query import attention, attention_naive
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.parallel.layout import layout_of
from minitrain.parallel.tensor.layers import SharedRows, tensor_parallel
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


def starts_as_slices(group):
    config = CONFIGS["one key head"]
    whole = whole_model(config)
    model = tensor_parallel(copy.deepcopy(whole), group)
    state, together = whole.state_dict(), gathered(model, group)
    kernels = [block.attention.kernel for block in model.blocks]
    model.blocks[0].attention.kernel = attention_naive  # it can be exchanged
    model(batch()[0])
    return (
        all(
            torch.equal(p, layout_of(p).slice.of(state[n]))
            for n, p in model.named_parameters()
            if p.dim() > 1
        ),
        all(torch.equal(together[name], state[name]) for name in state),
        kernels == [attention],
        sum(p.numel() for p in model.parameters()),
        model.embed.weight[max(0, 21 - group.rank * 6) :].abs().sum().item(),  # the padding
    )


def test_initialisation_is_the_slices_of_the_one_process_model():
    held = ModelConfig(24, 16, 1, heads=4, kv_heads=4, ffn_size=24, qkv_bias=True)
    whole = sum(p.numel() for p in build(held).parameters())
    norms = 3 * 16
    for slices, gathered, kernels, numbers, padding in launch(starts_as_slices, ranks=4):
        assert slices and gathered and kernels and padding == 0
        assert numbers == (whole - norms) // 4 + norms, "1/N of all matrices, padded, and the norms"


def layouts(group):
    found = {}
    for sequence in (False, True):
        model = tensor_parallel(whole_model(CONFIGS["one key head"]), group, sequence)
        for name, parameter in model.named_parameters():
            layout = layout_of(parameter)
            owned = layout.slice and layout.slice.owned
            found[name, sequence] = set(layout.split), set(layout.partial), owned
    return found


def test_layouts():
    for rank, found in enumerate(launch(layouts, ranks=2)):
        for (name, sequence), (split, partial, owned) in found.items():
            is_norm = "norm" in name
            assert split == (set() if is_norm else {"tp"})
            assert partial == ({"tp"} if is_norm and sequence else set())
            shared = name.endswith(("k.weight", "k.bias", "v.weight", "v.bias"))
            assert owned == ((range(4) if rank == 0 else range(4, 4)) if shared else None)


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
