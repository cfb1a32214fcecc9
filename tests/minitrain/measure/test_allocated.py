from __future__ import annotations

import torch

from minitrain.measure.allocated import peak_allocated_bytes


def test_the_peak_is_of_what_lives_at_the_same_time():
    def two_at_a_time():
        a = torch.ones(1000)  # 4,000 bytes
        b = a + 1
        del a
        c = b * 2
        return (b, c)

    peak = peak_allocated_bytes(lambda: two_at_a_time() and None)
    assert 8000 <= peak < 9000
    assert 16000 <= peak_allocated_bytes(lambda: [torch.ones(1000) for _ in range(4)]) < 17000


def test_what_was_there_before_does_not_count():
    before = torch.ones(100_000)
    assert peak_allocated_bytes(lambda: before.sum()) < 1000


def test_buffers_inside_an_operation_count():
    x = torch.randn(300, 300)
    inside = peak_allocated_bytes(lambda: torch.linalg.inv(x))
    assert inside > x.nbytes, "the result and a workspace"
