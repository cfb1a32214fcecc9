from __future__ import annotations

import pytest
import torch

from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.parallel.launch import launch
from minitrain.parallel.tensor import tensor_parallel
from minitrain.parallel.tensor_traffic import ends_bytes, layer_bytes
from minitrain.parallel.vocabulary import vocabulary_parallel_loss

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


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_bytes_are_the_closed_forms_exactly(ranks):
    for rank, cases in enumerate(launch(every_case, ranks=ranks)):
        for (name, sequence), measured in cases.items():
            shape = (CONFIGS[name], BATCH, LENGTH, ranks, sequence)
            want = [*layer_bytes(*shape, rank=rank), *ends_bytes(*shape)]
            assert [sent_bytes for sent_bytes, _ in measured] == want, (name, sequence)
            if name == "one head each":
                forward, backward = (kinds for _, kinds in measured[:2])
                each = ["all_gather"] * 2 + ["reduce_scatter"] * 2
                assert forward == (each if sequence else ["all_reduce"] * 2)
                assert backward == (["all_gather"] * 2 + each if sequence else ["all_reduce"] * 2)


def test_the_closed_form_as_papers_state_it():
    config = ModelConfig(512, 256, 1, heads=8, kv_heads=8, ffn_size=640)
    stream = 4 * 128 * 256 * 2
    for ranks in (2, 4, 8):
        share = stream * (ranks - 1) // ranks
        assert layer_bytes(config, 4, 128, ranks, number_bytes=2) == (4 * share, 4 * share)
        assert layer_bytes(config, 4, 128, ranks, True, 2) == (4 * share, 6 * share)
    assert layer_bytes(config, 4, 128, 1) == (0, 0)
