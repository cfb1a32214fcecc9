"""NF4 and FP4 beside bitsandbytes: the same table, the same bytes, the same way back."""

from __future__ import annotations

import pytest
import torch

from minitrain.quantization.formats.names import named

peer = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_the_table(kind):
    assert torch.equal(
        torch.tensor(named(kind).grid.levels), peer.get_4bit_type(kind, device="cpu")
    )


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("shape", [(64, 128), (33, 192), (24, 96)])
def test_packed_bytes_and_scales(kind, block, shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    weight[0, :7] = 0
    bytes_, state = peer.quantize_4bit(weight, blocksize=block, quant_type=kind)
    held = named(f"{kind}-b{block}").quantize(weight)
    assert torch.equal(held.tensors["codes"], bytes_.flatten())
    assert torch.equal(held.tensors["scale"], state.absmax)
    if shape[1] % block == 0:  # its AVX512 way back is wrong where a block runs over a row
        assert torch.equal(held.dequantize(), peer.dequantize_4bit(bytes_, state))


def test_double_quantization():
    """All but a few of its 8-bit levels: there the lowest is -1, and ours -0.993."""
    weight = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    bytes_, state = peer.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    held = named("nf4-dq").quantize(weight)
    assert torch.equal(held.tensors["codes"], bytes_.flatten())
    assert torch.equal(held.tensors["scale_mean"], state.offset)
    torch.testing.assert_close(held.tensors["scale_outer"], state.state2.absmax)
    same = held.tensors["scale_codes"] == state.absmax
    assert (~same).float().mean() < 0.01
    theirs = peer.dequantize_4bit(bytes_, state).view(-1, 64)[same]
    torch.testing.assert_close(held.dequantize().view(-1, 64)[same], theirs, rtol=1e-5, atol=1e-6)
    nbytes = sum(t.nbytes for t in (bytes_, state.absmax, state.state2.absmax, state.offset))
    assert held.nbytes == nbytes and round(8 * nbytes / weight.numel(), 3) == 4.127
