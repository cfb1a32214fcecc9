from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minitrain.measure.parameters import parameter_count
from minitrain.measure.traffic import ring_bytes
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.network.fabric import ethernet_25g, h100_infiniband
from minitrain.network.logical_clock import LogicalClock
from minitrain.parallel.tensor.layers import heads_of, tensor_parallel
from minitrain.parallel.tensor.vocabulary import vocabulary_parallel_loss
from minitrain.ranks.launch import launch

BATCH, LENGTH = 2, 12
CONFIGS = {
    "one head each": ModelConfig(21, 24, 1, heads=12, kv_heads=12, ffn_size=12),
    "grouped": ModelConfig(21, 24, 1, heads=12, kv_heads=4, ffn_size=12, qkv_bias=True),
    "one key head": ModelConfig(21, 24, 1, heads=12, kv_heads=1, ffn_size=12),
}


def sent(group, config, sequence):
    """Bytes and counts of operations, forward and backward: of a layer, and of the model's ends."""
    model = tensor_parallel(build(config), group, sequence)
    stream = torch.randn(BATCH, LENGTH // (group.size if sequence else 1), 24, requires_grad=True)
    out = []

    def measure(step):
        before = len(group.trace.ops)
        result = step()
        ops = group.trace.ops[before:]
        out.append((sum(op.sent_bytes for op in ops), sorted(op.kind for op in ops)))
        return result

    y = measure(lambda: model.blocks[0](stream, *model.surroundings(stream)))
    measure(lambda: y.sum().backward())
    tokens = torch.randint(21, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))

    def ends():
        logits = model.head(model.norm(model.embed(tokens)))
        return vocabulary_parallel_loss(logits, tokens, 1, group, config.vocab_size)

    loss = measure(ends)
    measure(loss.backward)
    return out


def every_case(group):
    return {
        (name, sequence): sent(group, config, sequence)
        for name, config in CONFIGS.items()
        for sequence in (False, True)
    }


def closed_forms(config, ranks, sequence, rank):
    """(layer forward, its backward, ends forward, their backward) of `layers.py`'s docstring, with
    the gradients of shared key/value heads and two numbers a token for the loss."""
    stream = 4 * BATCH * LENGTH * config.hidden_size
    whole, split = (ring_bytes(kind, stream, ranks) for kind in ("all_reduce", "all_gather"))
    head = 4 * 2 * config.head_size * (config.hidden_size + config.qkv_bias)
    holders = heads_of(rank, ranks, config.heads, config.kv_heads).shared.values()
    shared = sum(ring_bytes("all_reduce", head, len(ranks_)) for ranks_ in holders)
    loss = ring_bytes("all_gather", ranks * 4 * 2 * BATCH * LENGTH, ranks)
    if sequence:
        return [4 * split, 6 * split + shared, 2 * split + loss, 3 * split]
    return [2 * whole, 2 * whole + shared, whole + loss, whole]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_bytes_are_the_closed_forms_exactly(ranks):
    for rank, cases in enumerate(launch(every_case, ranks=ranks)):
        for (name, sequence), measured in cases.items():
            want = closed_forms(CONFIGS[name], ranks, sequence, rank)
            assert [sent_bytes for sent_bytes, _ in measured] == want, (name, sequence)
            if name == "one head each":
                forward, backward = (kinds for _, kinds in measured[:2])
                each = ["all_gather"] * 2 + ["reduce_scatter"] * 2
                assert forward == (each if sequence else ["all_reduce"] * 2)
                assert backward == (["all_gather"] * 2 + each if sequence else ["all_reduce"] * 2)


# ---- past the node ----

LAYER = ModelConfig(64, 8192, 1, heads=64, kv_heads=64, ffn_size=21824)  # about Llama 2 70B's
TOKENS = 4096  # one sequence in bfloat16
SMALL = ModelConfig(21, 32, 1, heads=16, kv_heads=16, ffn_size=32)  # what really runs


def layer_seconds(group, fabrics):
    """Emulated seconds that one layer's forward and backward wait for communication, on each."""
    return [seconds_over(group, fabric) for fabric in fabrics]


def seconds_over(group, fabric):
    group.use(LogicalClock(fabric, group.rank))
    block = tensor_parallel(build(SMALL), group).blocks[0]
    x = torch.randn(1, 8, 32, requires_grad=True)
    surroundings = build(SMALL).surroundings(x)
    group.barrier()
    start = group.now()
    block(x, *surroundings).sum().backward()
    return group.now() - start


def efficiency(ranks, *clusters):
    """A rank's share of the layer's matmuls over that and what it sends, none of it hidden."""
    scale = TOKENS * LAYER.hidden_size * 2 / (8 * 32 * 4)
    fabrics = [replace(c, payload_scale=scale, compute_scale=1e-9) for c in clusters]
    sending = map(max, zip(*launch(layer_seconds, fabrics, ranks=ranks, fabric=fabrics[0])))
    matrices = parameter_count(LAYER) - 2 * LAYER.vocab_size * LAYER.hidden_size
    computing = [6 * matrices * TOKENS / f.device.flops / ranks for f in fabrics]
    return [work / (work + seconds) for work, seconds in zip(computing, sending)]


def test_past_the_node_efficiency_falls_off():
    """A layer's bytes do not shrink with N: over InfiniBand, a card a GPU, that alone is the fall
    (16 GPUs on one NVLink would do no better); over 25 Gb/s Ethernet the network is."""
    infiniband = h100_infiniband()
    ethernet = replace(infiniband, between=ethernet_25g().between)
    [eight] = efficiency(8, infiniband)
    sixteen, over_ethernet = efficiency(16, infiniband, ethernet)
    assert eight > 0.7 and sixteen < 0.75 * eight
    assert over_ethernet < 0.5 * sixteen
