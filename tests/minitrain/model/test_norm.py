from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from minitrain.model.norm import RMSNorm, rms_norm, rms_norm_naive


@pytest.mark.parametrize("shape", [(2, 3, 8), (5, 33), (1, 1, 1, 6)])
def test_it_is_torchs_own_forward_and_backward(shape):
    for norm in (rms_norm, rms_norm_naive):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(shape[-1], dtype=torch.float64, requires_grad=True)
        dy = torch.randn(shape, dtype=torch.float64)
        ours, theirs = norm(x, weight, 1e-5), F.rms_norm(x, shape[-1:], weight, 1e-5)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        want = torch.autograd.grad(theirs, (x, weight), dy)
        got = torch.autograd.grad(ours, (x, weight), dy)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_a_vector_of_zeros_and_one_too_large_to_square_in_half_precision():
    weight = torch.ones(4)
    assert torch.equal(rms_norm(torch.zeros(1, 4), weight, 1e-5), torch.zeros(1, 4))
    large = torch.full((1, 4), 300.0, dtype=torch.float16, requires_grad=True)  # 300² > 65504
    out = rms_norm(large, weight.half(), 1e-5)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out, torch.ones_like(out))
    out.sum().backward()
    assert large.grad.dtype == torch.float16 and large.grad.isfinite().all()


def test_bfloat16_is_normalised_in_float32():
    x, weight = torch.randn(64, 32).bfloat16(), torch.randn(32).bfloat16()
    want = F.rms_norm(x.float(), (32,), weight.float(), 1e-5).bfloat16()
    assert torch.equal(rms_norm(x, weight, 1e-5), want)


def test_backward_keeps_the_input_and_one_number_a_token():
    saved = []

    def count(tensor):
        saved.append(tensor.numel())
        return tensor

    x = torch.randn(2, 3, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        RMSNorm(8, 1e-5)(x)
    assert sorted(saved) == [6, 8, 48]  # 1 / rms of each token, the weight, the input
