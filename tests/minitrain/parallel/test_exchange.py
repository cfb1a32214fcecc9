from __future__ import annotations

import torch

from minitrain.parallel.exchange import start_all_gather, start_reduce_scatter
from minitrain.parallel.launch import launch


def both(group):
    out = []
    for length in (1, 5, 1000):
        generator = torch.Generator().manual_seed(length)
        whole = torch.randn(group.size, length * group.size, generator=generator)
        waits = [start_reduce_scatter(group, whole[group.rank].clone(), torch.float64)]
        gathered = torch.zeros(group.size * length)
        gathered.chunk(group.size)[group.rank].copy_(whole[0].chunk(group.size)[group.rank])
        waits.append(start_all_gather(group, gathered))
        before = len(group.trace.ops)
        part = waits[0]()
        waits[1]()
        assert len(group.trace.ops) == before, "all was under way before the first wait"
        want = whole.double().sum(0).chunk(group.size)[group.rank]
        out.append((part, want, gathered, whole[0]))
    return out, group.trace.bytes_sent()


def test_sums_and_gathers_with_a_rings_bytes():
    for ranks in (1, 2, 3):
        for rows, sent in launch(both, ranks=ranks):
            for part, want, gathered, whole in rows:
                torch.testing.assert_close(part, want, rtol=1e-12, atol=1e-12)
                assert torch.equal(gathered, whole)
            assert sent == 2 * 4 * (ranks - 1) * 1006
