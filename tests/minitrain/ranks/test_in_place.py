"""The same launch under torchrun: each process is a rank, and has the results of all."""

from __future__ import annotations

import socket

import pytest

pytestmark = pytest.mark.timeout(120)


def test_under_torchrun_it_runs_in_place(tmp_path, run_script):
    text = """
    import torch
    from minitrain.ranks.launch import InputError, launch
    def ranks(group):
        total = group.all_reduce(torch.tensor([group.rank + 1.0]))
        return group.rank, total.item()
    results = launch(ranks, ranks=2)
    print(list(results), [trace.count() for trace in results.traces], list(launch(ranks, ranks=1)))
    try:
        launch(ranks, ranks=3)
    except InputError as error:
        print(error)
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    scripts = [run_script(text, RANK=rank, LOCAL_RANK=rank, **world) for rank in "01"]
    for script in scripts:
        lines = script.finish().splitlines()
        assert "[(0, 3.0), (1, 3.0)] [1, 1] [(0, 1.0)]" in lines
        assert "use ranks=2, or torchrun --nproc-per-node 3" in lines[-1]
