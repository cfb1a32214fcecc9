"""Layers and hybrids: cached = full, packed documents, transformers' MLA and Mamba-2, costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import DeepseekV3Config, Mamba2Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3RotaryEmbedding,
)
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from minitrain.errors import InputError
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.measure.flops import counted_flops
from minitrain.model.architectures import cost
from minitrain.model.architectures.hybrid import (
    KINDS,
    build_hybrid,
    greedy,
    held_bytes,
    hybrid_config,
)
from minitrain.model.architectures.latent import (
    LatentAttention,
    latent_attention_absorbed,
    latent_attention_expanded,
)
from minitrain.model.architectures.mixer import Around
from minitrain.model.architectures.multi_token import (
    MultiToken,
    multi_token_loss,
    second_token_acceptance,
)
from minitrain.model.architectures.recall import RECALLED, THING, WORD, WORD_FLOOR, Recall
from minitrain.model.architectures.sparse import (
    bigbird_blocks,
    longformer_blocks,
    sparse_attention,
    sparse_attention_naive,
    window_blocks,
)
from minitrain.model.architectures.ssd import Mamba2
from minitrain.model.config import ModelConfig, preset
from minitrain.model.rope import interleaved_to_half_split
from minitrain.model.transformer import build

BASE = ModelConfig(61, 32, layers=4, heads=4, kv_heads=2, ffn_size=48, window=7)
PATTERNS = [*KINDS, "DDDA", "LMXW", "AW convolved"]


def hybrid(pattern: str, **changes):
    changes = {"chunk": 8, "state_size": 6, "latent_size": 12, "rotary_size": 4, **changes}
    pattern, _, more = pattern.partition(" ")
    config = hybrid_config(BASE, pattern, attention_convolution=bool(more), **changes)
    return build_hybrid(config, torch.float64)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_reading_on_from_the_states_equals_the_whole_sequence(pattern):
    model, tokens = hybrid(pattern), torch.randint(61, (2, 29))
    whole, states, outs = model(tokens), None, []
    for start, stop in ((0, 11), (11, 12), (12, 13), (13, 29)):
        hidden, states = model.read(tokens[:, start:stop], states, start)
        outs.append(model.head(hidden))
    torch.testing.assert_close(torch.cat(outs, dim=1), whole)
    assert held_bytes(states) == 8 * 2 * cost.state_numbers(model.config, 29)
    changed = tokens.clone()
    changed[:, 17:] = 0
    torch.testing.assert_close(model(changed)[:, :17], whole[:, :17])  # causal


@pytest.mark.parametrize("pattern", PATTERNS)
def test_packed_documents_do_not_read_one_another(pattern):
    model, tokens = hybrid(pattern), torch.randint(61, (1, 30))
    documents = torch.tensor([[0] * 9 + [1] * 2 + [2] * 19])
    packed = model(tokens, documents)
    for start, stop in ((0, 9), (9, 11), (11, 30)):
        torch.testing.assert_close(packed[:, start:stop], model(tokens[:, start:stop]))
    packed.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_weights_and_flops_in_closed_form_are_those_of_the_model(pattern):
    model, tokens = hybrid(pattern), torch.randint(61, (1, 16))
    config = model.config
    counted = counted_flops(lambda: model(tokens))
    kinds = config.kinds
    one = {k: cost.layer_cost(config, k, 16).flops for k in kinds}
    expected = 16 * cost.forward_flops(config, 16)
    for kind in kinds:  # the fused kernel is counted with all its keys, not with the window's
        if kind == "W":
            expected += 16 * 4 * 32 * (16 - 7)
    assert counted == expected, one
    for block, kind in zip(model.blocks, kinds):
        matrices = [
            m.weight.numel() for m in block.attention.modules() if isinstance(m, torch.nn.Linear)
        ]
        assert sum(matrices) == cost.layer_cost(config, kind, 1).weights


def test_published_caches_and_ratios():
    deepseek = hybrid_config(
        ModelConfig(129280, 7168, 61, 128, 128, 18432, head_size=128),
        "X", latent_size=512, rotary_size=64, query_latent_size=1536,
    )  # fmt: skip
    assert cost.state_bytes(deepseek, 1) == 70_272
    assert cost.state_bytes(hybrid_config(preset("llama3-405b"), "A"), 1) == 516_096
    whole = cost.state_bytes(hybrid_config(preset("llama3-8b"), "A"), 2**20)
    kimi = cost.state_bytes(hybrid_config(preset("llama3-8b"), "DDDA"), 2**20)
    assert 0.25 < kimi / whole < 0.2505  # "KV cache reduced by 75%"
    absorbed = cost.layer_cost(deepseek, "X", 4096, decoding=True)
    assert absorbed.flops < cost.layer_cost(deepseek, "A", 4096, decoding=True).flops * 3


def test_absorbed_equals_expanded_and_both_are_deepseeks_layer():
    config = DeepseekV3Config(
        vocab_size=61, hidden_size=32, num_attention_heads=4, num_key_value_heads=4,
        kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16,
        num_hidden_layers=1, max_position_embeddings=64, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    theirs = DeepseekV3Attention(config, 0)
    own = hybrid_config(
        ModelConfig(61, 32, 1, 4, 4, 48, head_size=16, norm_eps=1e-6), "X",
        latent_size=16, rotary_size=8, query_latent_size=24,
    )  # fmt: skip
    ours = LatentAttention(own)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
        q = theirs.q_b_proj.weight.unflatten(0, (4, 24))  # per head: 16 plain rows, 8 rotated ones
        turned = interleaved_to_half_split(q[:, 16:].flatten(0, 1), 4).unflatten(0, (4, 8))
        ours.q.weight.copy_(torch.cat((q[:, :16], turned), dim=1).flatten(0, 1))
        ours.q_down.weight.copy_(theirs.q_a_proj.weight)
        ours.q_norm.weight.copy_(theirs.q_a_layernorm.weight)
        down = theirs.kv_a_proj_with_mqa.weight
        ours.down.weight.copy_(down[:16])
        ours.key.weight.copy_(interleaved_to_half_split(down[16:], 1))
        ours.norm.weight.copy_(theirs.kv_a_layernorm.weight)
        ours.up.weight.copy_(theirs.kv_b_proj.weight)
        ours.o.weight.copy_(theirs.o_proj.weight)
    x, places = torch.randn(2, 13, 32), torch.arange(13)
    turns = DeepseekV3RotaryEmbedding(config)(x, places[None])
    causal = torch.full((13, 13), -torch.inf).triu(1)[None, None]
    want = theirs(x, position_embeddings=turns, attention_mask=causal)[0]
    torch.testing.assert_close(ours(x, Around(places)), want, rtol=1e-5, atol=1e-5)
    first, state = ours.read(x[:, :6], Around(places[:6]))
    second, _ = ours.read(x[:, 6:], Around(places[6:]), state)  # absorbed
    torch.testing.assert_close(torch.cat((first, second), 1), want, rtol=1e-5, atol=1e-5)
    assert [z.shape[-1] for z in state] == [16, 8], "the latent is cached, not keys and values"
    q, rotated = torch.randn(2, 4, 3, 16).double(), torch.randn(2, 4, 3, 8).double()
    given = q, rotated, torch.randn(2, 9, 16).double(), torch.randn(2, 9, 8).double()
    up = torch.randn(4, 32, 16).double()
    one, other = (
        f(*given, up, None) for f in (latent_attention_absorbed, latent_attention_expanded)
    )
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_mamba2s_layer_with_its_weights():
    config = Mamba2Config(
        hidden_size=32, num_heads=4, head_dim=8, expand=1, state_size=6, n_groups=1,
        chunk_size=8, use_conv_bias=False, use_bias=False, rms_norm=True,
    )  # fmt: skip
    theirs = Mamba2Mixer(config, 0).eval()
    ours = Mamba2(
        hybrid_config(replace(BASE, norm_eps=config.layer_norm_epsilon), "M", state_size=6)
    )
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(0.4 * torch.randn_like(parameter))
        z, xbc, dt = theirs.in_proj.weight.split([32, 44, 4])
        ours.z.weight.copy_(z), ours.xbc.weight.copy_(xbc), ours.dt.weight.copy_(dt)
        ours.dt.bias.copy_(theirs.dt_bias), ours.skip.copy_(theirs.D)
        ours.log_rate.copy_(theirs.A_log), ours.norm.weight.copy_(theirs.norm.weight)
        ours.convolution.weight.copy_(theirs.conv1d.weight[:, 0])
        ours.o.weight.copy_(theirs.out_proj.weight)
    x = torch.randn(2, 21, 32)
    want = theirs(x)
    torch.testing.assert_close(ours(x, Around(torch.arange(21))), want, rtol=1e-4, atol=1e-5)


def test_greedy_generation_from_the_states_and_refusals():
    model, tokens = hybrid("DDDA"), torch.randint(61, (2, 5))
    got = torch.stack(list(greedy(model, tokens, 6)), dim=1)
    for token in got.T:
        assert torch.equal(model(tokens)[:, -1].argmax(-1), token)
        tokens = torch.cat((tokens, token[:, None]), dim=1)
    with pytest.raises(InputError, match="layers DDDA carry their own states"):
        read_on(model, tokens, DenseCache.of(model, 2, 99))
    for wrong, words in (
        (("DA" * 3, {}), "does not repeat evenly in 4 layers"),
        (("DB", {}), "no kind of layer is called 'B'"),
        (("W", {"window": None}), "needs a window"),
        (("A", {"chunk": 0}), "chunk is 0"),
    ):
        with pytest.raises(InputError, match=words):
            hybrid_config(BASE, wrong[0], **wrong[1])


# ---- blocks of keys ----


@pytest.mark.parametrize("blocks", [1, 5, 8])
def test_gathered_blocks_equal_the_masked_whole_and_cost_less(blocks):
    seeded = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, 3, 6 * blocks, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)
    )
    for reads in (
        window_blocks(blocks, 2),
        longformer_blocks(blocks, 1, 1),
        bigbird_blocks(blocks, 2, 1, 2, seeded),
    ):
        out = sparse_attention(q, k, v, reads)
        want = sparse_attention_naive(q, k, v, reads)
        torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12)
        one, other = (torch.autograd.grad(z.square().sum(), (q, k, v)) for z in (out, want))
        for a, b in zip(one, other):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        read = counted_flops(lambda reads=reads: sparse_attention(q, k, v, reads))
        assert read == 2 * 3 * 4 * 4 * 6 * blocks * 6 * int(reads.sum(1).max())
    assert bigbird_blocks(12, 2, 1, 2, seeded).sum(1).tolist() == [1, 2, 3, 4, *[5] * 8]
    with pytest.raises(InputError, match="do not divide into 4 blocks"):
        sparse_attention(q[:, :, :5], k[:, :, :5], v[:, :, :5], window_blocks(4, 1))


# ---- multi-token prediction ----


def test_depth_0_is_the_model_and_a_module_sees_only_what_it_may():
    model = build(BASE, dtype=torch.float64)
    tokens = torch.randint(61, (2, 12))
    assert torch.equal(MultiToken(model, 0)(tokens)[0], model(tokens))
    targets = torch.randint(61, (2, 12))
    plain = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(multi_token_loss([model(tokens)], targets), plain)
    both = MultiToken(model, 2).double()
    logits = both(tokens)
    assert [z.shape[1] for z in logits] == [12, 11, 10]
    changed = tokens.clone()
    changed[:, 8:] = 0  # depth 1 of row t reads tokens up to t + 1
    assert torch.equal(both(changed)[1][:, :7], logits[1][:, :7])
    assert not torch.allclose(both(changed)[1][:, 7:8], logits[1][:, 7:8])
    multi_token_loss(logits, targets).backward()
    assert all(p.grad is not None for p in both.parameters())
    assert 0 <= second_token_acceptance(logits) <= 1


# ---- sequences with two known floors ----


def test_facts_are_asked_for_after_they_are_told_and_the_floors_are_exact():
    recall = Recall(facts=5, asked=9, words=30)
    tokens, kinds = recall.draw(64, torch.Generator().manual_seed(0))
    assert tokens.shape == kinds.shape == (64, recall.length)
    counts = [(kinds == kind).sum(1).unique().tolist() for kind in range(4)]
    assert counts == [[30], [14], [5], [9]]
    for row, kind in zip(tokens.tolist(), kinds.tolist()):
        told = {}
        for t, (token, which) in enumerate(zip(row, kind)):
            if which == THING:
                told[row[t - 1]] = token
            if which == RECALLED:
                assert told[row[t - 1]] == token
    words = tokens[kinds == WORD].view(64, 30)
    steps = (words[:, 1:] - 3 * words[:, :-1]) % 20  # which of the four followers
    share = [(steps == k).float().mean().item() for k in (1, 3, 7, 8)]
    assert max(abs(a - b) for a, b in zip(share, (0.5, 0.25, 0.125, 0.125))) < 0.03
    perfect = torch.full((*tokens.shape, recall.vocab_size), -50.0)
    for t in range(recall.length - 1):
        perfect[range(64), t, tokens[:, t + 1]] = 0.0
    assert recall.losses(perfect, tokens, kinds)["right"] == 1.0
    assert abs(recall.losses(perfect, tokens, kinds)["words"] + WORD_FLOOR) < 1e-6
