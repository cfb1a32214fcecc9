"""NF4 against bitsandbytes: quantizing a matrix to 4.127 bits a weight, dequantizing it, and a
training step.

Both must hold the same codes, checked before timing. Rows are multiples of 64: with others
bitsandbytes' dequantization on AVX-512 is wrong. The step is QLoRA's: a frozen base in NF4 with
LoRA in float32, ours and PEFT's, which must start from the same loss.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from types import ModuleType

import torch
from torch import Tensor, nn

from minitrain.bench.case import OURS, PEER, Case, Shapes, peer_module
from minitrain.bench.finetuning import peer_config, peft
from minitrain.bench.steps import next_token_loss, random_text, training_step
from minitrain.finetuning.methods import ALL_LINEAR
from minitrain.finetuning.model import adapt
from minitrain.measure.clock import Comparison, compare
from minitrain.model.config import preset
from minitrain.model.transformer import Transformer, build
from minitrain.quantization.formats.names import named
from minitrain.quantization.model import quantize_model

FORMAT = named("nf4-dq")
TOLERANCE = 5e-3  # its lowest 8-bit level for scales is -1, ours -0.993
SETTINGS = {"quant_type": "nf4", "blocksize": 64, "compress_statistics": True}
QUANTIZE_REASON = (
    "ours is a dozen passes over the matrix (magnitudes, cells, comparisons, packing), the peer's "
    "one compiled loop"
)
DEQUANTIZE_REASON = (
    "ours goes over each piece of the float32 weight twice, a look into a table of byte -> two "
    "levels, and the scale; the peer does both in registers, with a permutation of AVX-512"
)
STEP_REASON = (
    "each weight is dequantized once for forward and once for backward on both sides, ours in two "
    "passes over it, the peer's in one"
)


def cases(
    repeats: int = 11,
    sizes: Sequence[tuple[int, int]] = ((4096, 1024),),
    shapes: Shapes = (("10M", 4, 64),),
) -> list[Case]:
    title = f"bitsandbytes {bitsandbytes().__version__}"
    rows = []
    for size in sizes:
        text = " x ".join(map(str, size))
        for verb, measure, reason in (
            ("quantize", quantize_measured, QUANTIZE_REASON),
            ("dequantize", dequantize_measured, DEQUANTIZE_REASON),
        ):
            rows.append(
                Case(f"nf4-dq {verb} {text}", title, partial(measure, size, repeats), reason)
            )
    for name, batch, length in shapes:
        measure = partial(step_measured, name, batch, length, repeats)
        peer = f"{title} under PEFT {peft().__version__}"
        rows.append(Case(f"qlora step {name}, {batch} x {length}", peer, measure, STEP_REASON))
    return rows


def bitsandbytes() -> ModuleType:
    return peer_module("nf4", "bitsandbytes")


def check_close(ours: Tensor, peers: Tensor, what: str) -> None:
    error = (ours - peers).norm() / peers.norm()
    assert error < TOLERANCE, f"{what} differ by {error:.2%}"


def quantize_measured(size: tuple[int, int], repeats: int) -> Comparison:
    weight, peer = torch.randn(size), bitsandbytes().functional
    steps = {
        OURS: partial(FORMAT.quantize, weight),
        PEER: partial(peer.quantize_4bit, weight, **SETTINGS),
    }
    assert torch.equal(steps[OURS]().tensors["codes"], steps[PEER]()[0].flatten())
    return compare(steps, repeats)


def dequantize_measured(size: tuple[int, int], repeats: int) -> Comparison:
    weight, peer = torch.randn(size), bitsandbytes().functional
    steps = {
        OURS: FORMAT.quantize(weight).dequantize,
        PEER: partial(peer.dequantize_4bit, *peer.quantize_4bit(weight, **SETTINGS)),
    }
    check_close(steps[OURS](), steps[PEER](), "the ways back")
    return compare(steps, repeats)


def step_measured(name: str, batch: int, length: int, repeats: int) -> Comparison:
    model, text = build(preset(name)), random_text(name, batch, length, "cpu")
    theirs = peft().inject_adapter_in_model(peer_config("lora"), in_peers_nf4(model))
    ours = adapt(quantize_model(model, FORMAT), "lora", rank=8, alpha=16)
    contenders = {OURS: ours, PEER: theirs}
    losses = {who: partial(next_token_loss, each, text) for who, each in contenders.items()}
    check_close(ours(text), theirs(text), "the logits")
    torch.testing.assert_close(losses[OURS](), losses[PEER](), rtol=TOLERANCE, atol=0)
    steps = {}
    for who, each in contenders.items():
        trained = [p for p in each.parameters() if p.requires_grad]
        steps[who] = training_step(losses[who], torch.optim.AdamW(trained, lr=1e-4, fused=True))
    counts = [sum(p.numel() for p in m.parameters() if p.requires_grad) for m in (ours, theirs)]
    assert counts[0] == counts[1], f"they train {counts} numbers"
    return compare(steps, repeats, warmup=3)


def in_peers_nf4(model: Transformer) -> nn.Module:
    """A copy whose blocks' linear layers are bitsandbytes', as PEFT expects a QLoRA base."""
    theirs, nn4 = copy.deepcopy(model), bitsandbytes().nn
    for name, linear in list(theirs.named_modules()):
        if isinstance(linear, nn.Linear) and name.rsplit(".", 1)[-1] in ALL_LINEAR:
            layer = nn4.Linear4bit(
                linear.in_features,
                linear.out_features,
                bias=linear.bias is not None,
                compute_dtype=torch.float32,
                quant_type="nf4",
            )
            layer.load_state_dict(linear.state_dict())
            theirs.set_submodule(name, layer.to("cpu"))  # quantizes
    theirs.is_loaded_in_4bit = True  # checked by PEFT
    return theirs
