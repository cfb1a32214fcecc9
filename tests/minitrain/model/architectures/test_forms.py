"""Parallel = recurrent = chunked, in outputs, states and every gradient; and transformers' own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.mamba2 import modeling_mamba2 as mamba2
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from minitrain.model.architectures.delta import delta_chunked, delta_parallel, delta_recurrent
from minitrain.model.architectures.linear_attention import (
    elu_features,
    kernel_attention,
    linear_chunked,
    linear_parallel,
    linear_recurrent,
    orthogonal_directions,
    random_features,
)
from minitrain.model.architectures.ssd import (
    segment_sum,
    ssd_chunked,
    ssd_parallel,
    ssd_recurrent,
)

FORMS = {
    "linear": (linear_recurrent, linear_parallel, linear_chunked),
    "ssd": (ssd_recurrent, ssd_parallel, ssd_chunked),
    "delta": (delta_recurrent, delta_parallel, delta_chunked),
}


def drawn(
    kind: str, length: int, keys: int = 5, values: int = 4, heads: int = 3, dtype=torch.float64
):
    """q, k, v, and the gates of this kind; keys of length 1."""
    q, k = (F.normalize(torch.randn(2, heads, length, keys, dtype=dtype), dim=-1) for _ in range(2))
    v = torch.randn(2, heads, length, values, dtype=dtype)
    decay = -torch.rand(2, heads, length, dtype=dtype)
    beta = torch.rand(2, heads, length, dtype=dtype)
    return (q, k, v, decay, beta)[: {"linear": 3, "ssd": 4, "delta": 5}[kind]]


def with_gradients(form, inputs, state, **settings):
    """Outputs, state, and the gradient of every input and of the first state."""
    inputs = [z.clone().requires_grad_() for z in (*inputs, state)]
    out, after = form(*inputs[:-1], state=inputs[-1], **settings)
    weights = torch.linspace(-1, 1, out.numel()).to(out).view(out.shape)
    ((out * weights).sum() + after.square().sum()).backward()
    return [out.detach(), after.detach(), *(z.grad for z in inputs)]


def close(got, want, tolerance=1e-12):
    return all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(got, want))


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(list(FORMS)), st.integers(1, 40), st.integers(1, 24), st.integers(0, 99))
def test_three_forms_agree_in_outputs_states_and_all_gradients(kind, length, size, seed):
    torch.manual_seed(seed)
    recurrent, parallel, chunked = FORMS[kind]
    inputs, state = drawn(kind, length), torch.randn(2, 3, 5, 4, dtype=torch.float64)
    want = with_gradients(recurrent, inputs, state)
    assert close(with_gradients(parallel, inputs, state), want)
    assert close(with_gradients(chunked, inputs, state, size=size), want)


@pytest.mark.parametrize("kind", FORMS)
def test_a_state_is_handed_over_between_segments_in_any_form(kind):
    inputs, state, outs = drawn(kind, 30), None, []
    want, last = FORMS[kind][0](*inputs)
    for form, part in zip(FORMS[kind][::-1], (slice(0, 13), slice(13, 14), slice(14, 30))):
        out, state = form(*(z[:, :, part] for z in inputs), state=state)
        outs.append(out)
    assert close([torch.cat(outs, 2), state], [want, last])
    lost = FORMS[kind][1](*(z[:, :, 14:] for z in inputs))[0]
    assert not close([lost], [want[:, :, 14:]]), "without the state the second part differs"


@pytest.mark.parametrize("kind", FORMS)
def test_no_form_reads_ahead(kind):
    for form in FORMS[kind]:
        inputs = drawn(kind, 20)
        before = form(*inputs)[0]
        for z in inputs:
            z[:, :, 11:] += 1.0
        after = form(*inputs)[0]
        assert torch.equal(before[:, :, :11], after[:, :, :11])
        assert not torch.allclose(before[:, :, 11:], after[:, :, 11:])


def test_the_delta_rule_equals_qwen3_nexts_functions():
    q, k, v, decay, beta = drawn("delta", 77, dtype=torch.float32)
    state = torch.randn(2, 3, 5, 4)
    theirs = [z.transpose(1, 2) for z in (q, k, v, decay, beta)]
    for oracle in (
        qwen3_next.torch_chunk_gated_delta_rule,
        qwen3_next.torch_recurrent_gated_delta_rule,
    ):
        out, after = oracle(*theirs, initial_state=state, output_final_state=True)
        for form in FORMS["delta"]:
            mine = form(q / 5**0.5, k, v, decay, beta, state)
            assert close(mine, (out.transpose(1, 2), after), 1e-5)


def test_ssd_equals_mamba2s_functions():
    length, heads, size, n = 70, 3, 4, 5
    x, dt = torch.randn(2, length, heads, size), torch.rand(2, length, heads)
    rate, b, c = -torch.rand(heads), torch.randn(2, length, 1, n), torch.randn(2, length, 1, n)
    out, after = mamba2.mamba2_chunk_scan(x, dt, rate, b, c, 16, return_final_states=True)
    given = (
        c.transpose(1, 2),
        b.transpose(1, 2),
        (x * dt[..., None]).transpose(1, 2),
        (rate * dt).transpose(1, 2),
    )
    for form in FORMS["ssd"]:
        mine, state = form(*given)
        assert close([mine, state], [out.transpose(1, 2), after.mT], 1e-5)
    stepped = torch.zeros(2, heads, size, n)
    for t in range(length):
        y = mamba2.mamba2_selective_state_update(
            stepped, x[:, t], dt[:, t, :, None].expand(-1, -1, size),
            rate[:, None, None].expand(-1, size, n), b[:, t], c[:, t],
        )  # fmt: skip
        torch.testing.assert_close(mine[:, :, t], y.view(2, heads, size), rtol=1e-5, atol=1e-5)


def test_the_sums_between_tokens_are_exact_where_differences_are_not():
    decay = torch.full((20_000,), -50.0)
    decay[-4:] = -0.26
    far = decay.cumsum(0)
    assert abs(segment_sum(decay[-4:])[3, 0] + 0.78) < 1e-6
    assert abs(far[-1] - far[-4] + 0.78) > 0.02, "a difference of long sums has lost the digits"
    forgets = torch.tensor([-1.0, -torch.inf, -2.0])
    assert segment_sum(forgets).exp()[2, 0] == 0 and segment_sum(forgets)[2, 1] == -2
    q, k, v, decay = drawn("ssd", 9)
    decay[..., 4] = -torch.inf
    alone = ssd_recurrent(*(z[:, :, 4:] for z in (q, k, v, decay)))[0]
    for form in FORMS["ssd"]:
        assert close([form(q, k, v, decay)[0][:, :, 4:]], [alone])
        assert all(
            z.isfinite().all()
            for z in with_gradients(form, (q, k, v, decay), torch.zeros(2, 3, 5, 4).double())
        )


def test_the_delta_rule_is_a_dictionary_with_overwriting():
    keys = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    values = torch.randn(6, 3, dtype=torch.float64)
    written = [0, 1, 2, 3, 1, 0]  # 1 and 0 are written twice
    k = torch.stack([keys[i] for i in written])[None, None]
    full, none = torch.ones(1, 1, 6, dtype=torch.float64), torch.zeros(1, 1, 6, dtype=torch.float64)
    _, state = delta_chunked(k, k, values[None, None], none, full, size=4)
    read = keys @ state[0, 0]
    torch.testing.assert_close(read, values[[5, 4, 2, 3]])
    added = keys @ linear_parallel(k, k, values[None, None])[1][0, 0]
    torch.testing.assert_close(
        added, torch.stack([values[0] + values[5], values[1] + values[4], values[2], values[3]])
    )
    _, kept = delta_chunked(k, k, values[None, None], none, none, state, size=4)
    torch.testing.assert_close(kept, state)


def test_kernel_attention_is_an_average_and_random_features_come_near_softmax():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 12, 4, dtype=torch.float64) / 2 for _ in range(3))
    out = kernel_attention(elu_features(q), elu_features(k), torch.ones_like(v))[0]
    torch.testing.assert_close(out, torch.ones_like(out))
    errors = {}
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    for count in (8, 8192):
        seeded = torch.Generator().manual_seed(0)
        directions = orthogonal_directions(count, 4, seeded)
        features = (random_features(z / 4**0.25, directions) for z in (q, k))
        errors[count] = (kernel_attention(*features, v)[0] - want).abs().max().item()
    assert errors[8192] < 0.03 < errors[8]
