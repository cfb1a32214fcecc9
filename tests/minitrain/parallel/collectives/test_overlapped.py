from __future__ import annotations

import torch

from minitrain.parallel.collectives.overlapped import start_all_gather, start_reduce_scatter_mean
from minitrain.ranks.launch import launch


def both(group):
    out = []
    for length, dtype in ((1, torch.float64), (5, torch.float64), (1000, torch.bfloat16)):
        generator = torch.Generator().manual_seed(length)
        whole = torch.randn(group.size, length * group.size, generator=generator).to(dtype)
        mine = whole[group.rank].clone()
        gathered = torch.zeros_like(mine)
        gathered.chunk(group.size)[group.rank].copy_(whole[0].chunk(group.size)[group.rank])
        waits = [start_reduce_scatter_mean(group, mine), start_all_gather(group, gathered)]
        before = len(group.trace.ops)
        part = waits[0]()
        waits[1]()
        assert len(group.trace.ops) == before, "all was under way before the first wait"
        assert torch.equal(part, mine.chunk(group.size)[group.rank]), "in place"
        want = whole.double().mean(0).to(dtype).chunk(group.size)[group.rank]
        out.append((part, want, gathered, whole[0]))
    return out, group.trace.bytes_sent()


def test_averages_and_gathers_with_a_rings_bytes():
    for ranks in (1, 2, 3):
        for rows, sent in launch(both, ranks=ranks):
            for part, want, gathered, whole in rows:
                torch.testing.assert_close(part, want, rtol=1e-12, atol=1e-12)
                assert torch.equal(gathered, whole)
            assert sent == 2 * (ranks - 1) * (8 * 1 + 8 * 5 + 2 * 1000)
