"""launch: results, prints and time on the ranks, and what a person can get wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch

from minitrain.errors import InputError
from minitrain.ranks.launch import launch

pytestmark = pytest.mark.timeout(120)


# ---- what arrives ----


def test_results_come_in_rank_order_with_traces_and_time():
    def work(group, offset):
        group.all_reduce(torch.ones(3))
        return group.rank + offset, group.size

    results = launch(work, 10, ranks=3)
    assert list(results) == [(10, 3), (11, 3), (12, 3)]
    assert [trace.rank for trace in results.traces] == [0, 1, 2]
    assert [trace.count("all_reduce") for trace in results.traces] == [1, 1, 1]
    assert results.seconds > 0
    assert results.emulated_seconds is None and results.fabric is None


def test_ranks_differ_in_their_seed_and_repeat_it():
    def draw(group):
        import random

        import numpy as np

        return torch.rand(1).item(), random.random(), np.random.rand()

    first, again = launch(draw, ranks=2), launch(draw, ranks=2)
    assert first == again
    assert all(a != b for a, b in zip(first[0], first[1]))


def test_cores_are_shared_among_the_ranks():
    cores = len(os.sched_getaffinity(0))
    assert launch(lambda group: torch.get_num_threads(), ranks=2) == [max(1, cores // 2)] * 2


def test_a_rank_may_have_loader_workers_of_its_own():
    def load(group):
        data = torch.utils.data.TensorDataset(torch.arange(8))
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)
        return [batch[0].tolist() for batch in loader]

    assert launch(load, ranks=1) == [[[0, 1, 2, 3], [4, 5, 6, 7]]]


def test_the_environment_of_now_reaches_the_ranks(monkeypatch):
    monkeypatch.setenv("MINITRAIN_TEST_OF_NOW", "yes")
    assert launch(lambda group: os.environ.get("MINITRAIN_TEST_OF_NOW"), ranks=1) == ["yes"]


# ---- prints ----


def test_prints_arrive_as_whole_lines(capsys):
    def talk(group):
        for i in range(100):
            print("x" * 50, end="")  # in pieces, so that lines could mix
            print(f"|{i}")
        print("no newline", end="")

    launch(talk, ranks=3)
    lines = capsys.readouterr().out.splitlines()
    for rank in range(3):
        own = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        expected = [f"[rank {rank}] {'x' * 50}|{i}" for i in range(100)]
        assert own == [*expected, f"[rank {rank}] no newline"]
    assert len(lines) == 303


def test_prints_arrive_while_the_ranks_still_work(monkeypatch):
    arrived = []

    class Stamped:
        def write(self, text):
            arrived.append((text, time.perf_counter()))

        def flush(self):
            pass

    def talk(group):
        print("begun")
        time.sleep(1.0)

    monkeypatch.setattr(sys, "stdout", Stamped())
    launch(talk, ranks=1)
    ended = time.perf_counter()
    monkeypatch.undo()
    [(text, when)] = arrived
    assert text == "[rank 0] begun\n"
    assert ended - when > 0.2


# ---- what a person can get wrong ----


@pytest.mark.parametrize(
    "arguments, words",
    [
        *(({"ranks": n}, "whole number, 1 or more") for n in (0, -1, 2.0, "2", True, None)),
        ({"ranks": 100_000}, r"more than this machine can hold.*use at most \d+"),
        *(({"timeout": t}, "give the seconds") for t in (0, float("nan"), float("inf"), "60")),
        ({"fn": torch.ones(2)}, "cannot be called"),
        ({"fabric": "h100-nvlnk"}, "did you mean 'h100-nvlink'"),
        ({"start_method": "thread"}, "start_method"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, words):
    with pytest.raises(InputError, match=words):
        launch(**{"fn": print, **arguments})


def test_a_temporary_folder_with_too_long_a_path_is_told_with_its_remedy(tmp_path):
    deep = tmp_path / ("deep" * 25)
    deep.mkdir()
    code = "from minitrain.ranks.launch import launch; launch(print, ranks=2)"
    environment = {**os.environ, "TMPDIR": str(deep)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode and "set TMPDIR to a shorter one, such as /tmp" in done.stderr
