"""The Triton kernels against the tiles: on a GPU where there is one, else in Triton's interpreter.

The interpreter is switched on by an environment variable that is read when triton is imported: so
the cases run in a process of their own, from the end of this file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minitrain.errors import InputError
from minitrain.model.attention.mask import Mask
from minitrain.model.attention.tiled import tiled_attention
from minitrain.model.attention.triton import triton_attention

ROOT = Path(__file__).resolve().parents[4]
#        heads, kv heads, queries, keys, C, offset, window, packed
CASES = [
    (2, 1, 70, 70, 8, None, None, False),  # a length that no tile divides, grouped heads
    (2, 2, 5, 70, 16, None, None, False),  # the last 5 queries
    (2, 1, 70, 66, 8, -3, 20, True),  # rows that read nothing, a window, documents
    (1, 1, 3, 70, 24, 200, None, False),  # all keys, and a C that is no power of two
]


def check(case, device, dtype=torch.float32, atol=1e-5):
    heads, kv_heads, queries, keys, size, offset, window, packed = case
    torch.manual_seed(0)
    shapes = [(2, heads, queries, size)] + [(2, kv_heads, keys, size)] * 2
    q, k, v = (torch.randn(s, device=device, dtype=dtype, requires_grad=True) for s in shapes)
    documents = [torch.randint(0, 2, (2, n), device=device).cumsum(1) // 9 for n in (queries, keys)]
    mask = Mask(offset, window, *(documents if packed else (None, None)))
    d_out = torch.randn_like(q)
    mine = triton_attention(q, k, v, mask)
    exact = [z.detach().double().requires_grad_() for z in (q, k, v)]
    want = tiled_attention(*exact, mask)
    grads = torch.autograd.grad(mine, (q, k, v), d_out)
    wanted = torch.autograd.grad(want, exact, d_out.double())
    for ours, theirs in zip((mine, *grads), (want, *wanted)):
        torch.testing.assert_close(ours.double(), theirs, rtol=atol, atol=atol)


def test_in_the_interpreter():
    pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    caught = {"capture_output": True, "text": True, "timeout": 240}
    ran = subprocess.run([sys.executable, __file__], env=environment, cwd=ROOT, **caught)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(CASES)} cases agree" in ran.stdout


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu():
    pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    for case in [*CASES, (8, 2, 1000, 1000, 64, None, None, True)]:
        check(case, "cuda")
        check(case, "cuda", torch.bfloat16, atol=3e-2)


def test_float64_is_refused():
    q = torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    with pytest.raises(InputError, match="give float64 to tiled_attention"):
        triton_attention(q, q, q)


if __name__ == "__main__":
    for case in CASES:
        check(case, "cpu")
    print(f"{len(CASES)} cases agree")
