"""launch: what arrives, and what is said when it cannot. Every failure here is really caused."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from pathlib import Path

import psutil
import pytest
import torch

from minitrain.errors import InputError
from minitrain.parallel.launch import (
    DeadlineError,
    DeadlockError,
    MismatchError,
    RankDied,
    RankError,
    RankInputError,
    launch,
)

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module", autouse=True)
def started():
    launch(lambda group: None, ranks=1)  # the server, so that no test below pays for its start


def line_of(text: str) -> int:
    """The line of this file that holds `text`, which a report has to name."""
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.strip() == text)


def fails(error, fn, *args, ranks=2, timeout=20.0):
    """The error that `fn` on `ranks` ends in, and the seconds until it did."""
    begun = time.perf_counter()
    with pytest.raises(error) as caught:
        launch(fn, *args, ranks=ranks, timeout=timeout)
    assert type(caught.value) is error
    assert [report.rank for report in caught.value.reports] == list(range(ranks))
    return caught.value, time.perf_counter() - begun


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


def test_a_closure_and_what_it_holds_travels_by_value():
    scale = torch.tensor([2.0, 3.0])
    results = launch(lambda group: scale * (group.rank + 1), ranks=2)
    assert torch.equal(results[1], torch.tensor([4.0, 6.0]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.bool])
def test_tensors_return_as_they_are(dtype):
    def some(group):
        whole = torch.arange(24).reshape(4, 6).to(dtype)
        return {"whole": whole, "column": whole[:, 2], "none": whole[:0], "scalar": whole[1, 1]}

    [result] = launch(some, ranks=1)
    expected = torch.arange(24).reshape(4, 6).to(dtype)
    assert torch.equal(result["whole"], expected)
    assert torch.equal(result["column"], expected[:, 2])
    assert result["none"].shape == (0, 6) and result["scalar"].shape == ()
    assert {tensor.dtype for tensor in result.values()} == {dtype}


def test_a_slice_does_not_drag_the_whole_along():
    from minitrain.parallel.payload import dumps

    assert len(dumps(torch.zeros(1_000_000)[:3])) < 1000


def test_a_model_goes_and_returns_with_its_parameters():
    def train(group, model):
        model(torch.ones(2, 3)).sum().backward()
        return model

    [model] = launch(train, torch.nn.Linear(3, 1), ranks=1)
    assert isinstance(model.weight, torch.nn.Parameter) and model.weight.requires_grad
    assert torch.equal(model.weight.grad, torch.full((1, 3), 2.0))


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


def test_a_later_launch_is_fast():
    """0.06 to 0.1 s for 4 ranks on two free cores; here the cores may be shared by many."""
    seconds = [launch(lambda group: group.barrier(), ranks=4).seconds for _ in range(5)]
    assert min(seconds) < 1.5


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


def test_a_progress_bar_shows_its_last_state(capsys):
    def bar(group):
        sys.stderr.write("10%\r50%\r100%\n")

    launch(bar, ranks=1)
    assert capsys.readouterr().err == "[rank 0] 100%\n"


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
    assert ended - when > 0.8


def test_quiet_is_quiet(capsys):
    launch(lambda group: print("hello"), ranks=1, quiet=True)
    assert capsys.readouterr().out == ""


# ---- deadlocks ----


def both_receive(group):
    x = torch.ones(4)
    group.recv(x, source=1 - group.rank)
    group.send(x, to=1 - group.rank)


def test_a_deadlock_is_told_long_before_the_deadline():
    error, seconds = fails(DeadlockError, both_receive, timeout=60.0)
    assert seconds < 10
    line = line_of("group.recv(x, source=1 - group.rank)")
    for report in error.reports:
        assert (report.state, report.line) == ("waiting", line)
        assert report.operation == f"recv from rank {1 - report.rank} of float32 [4]"
        assert f"line {line}: group.recv(x, source=1 - group.rank)" in str(report)


def test_two_that_send_first_deadlock_too():
    def both_send(group):
        group.send(torch.ones(4), to=1 - group.rank)
        group.recv(torch.ones(4), source=1 - group.rank)

    error, _ = fails(DeadlockError, both_send)
    assert [report.operation[:4] for report in error.reports] == ["send", "send"]


def test_a_ring_of_three_waits_in_a_circle():
    def ring(group):
        group.recv(torch.ones(1), source=(group.rank - 1) % 3)

    error, _ = fails(DeadlockError, ring, ranks=3)
    assert "ranks 0, 1, 2 wait" in str(error)


def one_returns(group):
    if group.rank == 1:
        return
    group.all_reduce(torch.ones(2, 3))


def test_a_rank_that_returns_early_is_named():
    error, seconds = fails(DeadlockError, one_returns, timeout=60.0)
    assert seconds < 10
    waiting, finished = error.reports
    assert (waiting.state, finished.state) == ("waiting", "finished")
    assert waiting.operation == "all_reduce(sum) of float32 [2, 3]"
    assert waiting.line == line_of("group.all_reduce(torch.ones(2, 3))")
    assert "rank 0 waits, but rank 1 has returned" in str(error)
    assert "closed by peer" not in str(error)


def test_a_wait_that_may_still_end_is_no_deadlock():
    def patient(group):
        if group.rank == 0:
            time.sleep(1.5)  # the others wait for this one, which is at work
        group.barrier()
        return "through"

    assert launch(patient, ranks=3) == ["through"] * 3


def test_a_thread_of_ones_own_may_still_send():
    """Rank 0 waits, but a thread of its own frees rank 1 later: no deadlock may be claimed."""

    def threaded(group):
        if group.rank == 0:

            def later():
                time.sleep(1.0)
                group.send(torch.ones(1), to=1)

            thread = threading.Thread(target=later)
            thread.start()
            group.recv(torch.ones(1), source=1)
            thread.join()
        else:
            group.recv(torch.ones(1), source=0)
            group.send(torch.ones(1), to=0)
        return True

    assert launch(threaded, ranks=2) == [True, True]


def waits_for_a_busy_rank(group):
    if group.rank == 1:
        while True:
            pass
    group.barrier()


def test_at_the_deadline_each_rank_says_where_it_is():
    error, seconds = fails(DeadlineError, waits_for_a_busy_rank, timeout=1.5)
    assert seconds < 1.5 + 2
    waiting, busy = error.reports
    assert (waiting.state, waiting.operation) == ("waiting", "barrier")
    assert busy.state == "computing"
    assert busy.line in (line_of("while True:"), line_of("while True:") + 1)


def test_a_rank_stuck_in_c_is_seen_too():
    def stuck(group):
        group.barrier()
        sum(range(10**12))  # holds the interpreter: no thread of the rank can run

    error, seconds = fails(DeadlineError, stuck, ranks=1, timeout=1.5)
    assert seconds < 1.5 + 2
    assert "sum(range(10**12))" in str(error)


# ---- mismatches ----


def different_operations(group):
    if group.rank == 1:
        group.broadcast(torch.ones(4))
    else:
        group.all_reduce(torch.ones(4))


def different_shapes(group):
    group.all_reduce(torch.ones(4 + group.rank))


def different_reductions(group):
    group.all_reduce(torch.ones(4), op="max" if group.rank else "sum")


def different_dtypes(group):
    group.all_reduce(torch.ones(4, dtype=torch.float64 if group.rank else torch.float32))


def different_roots(group):
    group.broadcast(torch.ones(4), root=group.rank)


def different_message_sizes(group):
    if group.rank == 0:
        group.send(torch.ones(3), to=1)
    else:
        group.recv(torch.ones(4), source=0)


def different_in_a_subgroup(group):
    small = group.split(color=0)
    small.all_reduce(torch.ones(4 + group.rank))


@pytest.mark.parametrize(
    "fn, words",
    [
        (different_operations, ("all_reduce(sum) of float32 [4]", "broadcast(root 0)")),
        (different_shapes, ("all_reduce(sum) of float32 [4]", "all_reduce(sum) of float32 [5]")),
        (different_reductions, ("all_reduce(sum)", "all_reduce(max)")),
        (different_dtypes, ("float32 [4]", "float64 [4]")),
        (different_roots, ("broadcast(root 0)", "broadcast(root 1)")),
        (different_message_sizes, ("send to rank 1 of float32 [3]", "from rank 0 of float32 [4]")),
        (different_in_a_subgroup, ("all_reduce(sum) of float32 [4]", "float32 [5]")),
    ],
)
def test_a_mismatch_names_ranks_operations_and_shapes(fn, words):
    error, seconds = fails(MismatchError, fn, timeout=60.0)
    assert seconds < 10
    assert all(word in error.headline for word in words)
    for report, word in zip(error.reports, words):
        assert word in report.operation
        assert report.line is not None and Path(report.file).name == "test_launch.py"
    assert "closed by peer" not in str(error)


# ---- exceptions and deaths ----


def fails_in_a_helper(group):
    if group.rank == 1:
        helper()
    group.all_reduce(torch.ones(4))


def helper():
    raise ValueError("the loss is nan")


def test_an_exception_is_told_once_with_the_way_to_it():
    error, _ = fails(RankError, fails_in_a_helper)
    line = line_of('raise ValueError("the loss is nan")')
    assert error.headline == "rank 1 raised ValueError: the loss is nan"
    assert (error.reports[1].state, error.reports[1].line) == ("failed", line)
    assert error.reports[0].operation == "all_reduce(sum) of float32 [4]"
    assert "in fails_in_a_helper: helper()" in str(error)
    assert "closed by peer" not in str(error)


def test_ipython_shows_the_learners_frames_alone():
    error, _ = fails(RankError, fails_in_a_helper)
    shown = "\n".join(error._render_traceback_())
    assert "RankError: rank 1 raised ValueError" in shown
    assert "test_launch.py" in shown
    assert "worker.py" not in shown and " launch.py" not in shown and "Traceback" not in shown


def test_all_ranks_that_fail_are_told():
    def everyone(group):
        raise RuntimeError(f"from {group.rank}")

    error, _ = fails(RankError, everyone, ranks=3)
    assert [report.state for report in error.reports] == ["failed"] * 3


def test_an_input_error_stays_one():
    def wrong(group):
        group.send(torch.ones(1), to=7)

    error, _ = fails(RankInputError, wrong)
    assert isinstance(error, InputError) and isinstance(error, RankError)
    assert "cannot send to rank 7 of 2: use a rank from 0 to 1" in str(error)


def test_sys_exit_is_no_silent_end():
    def leave(group):
        sys.exit(3)

    error, _ = fails(RankError, leave, ranks=1)
    assert "SystemExit: 3" in str(error)


def test_a_result_that_cannot_return_is_named():
    error, _ = fails(RankError, lambda group: (i for i in range(3)), ranks=1)
    assert "what it returned, a generator, cannot be sent back" in str(error)


def writes_its_pid(group, folder):
    if group.rank == 1:
        (folder / "part").write_text(str(os.getpid()))
        (folder / "part").rename(folder / "pid")
        time.sleep(60)
    group.all_reduce(torch.ones(4))


def test_a_rank_killed_from_outside_is_named(tmp_path):
    def kill():
        while not (tmp_path / "pid").exists():
            time.sleep(0.02)
        time.sleep(0.5)  # long enough for the rank's watch to have seen the line
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    error, _ = fails(RankDied, writes_its_pid, tmp_path)
    killer.join()
    waiting, died = error.reports
    assert "killed by signal 9, SIGKILL" in str(died) and died.state == "died"
    assert died.line == line_of("time.sleep(60)")
    assert waiting.operation == "all_reduce(sum) of float32 [4]"
    assert "closed by peer" not in str(error)


def test_os_exit_is_named():
    def leave(group):
        if group.rank == 1:
            os._exit(5)
        group.barrier()

    error, _ = fails(RankDied, leave)
    assert "exited with code 5" in str(error.reports[1])
    assert error.reports[0].operation == "barrier"


def test_a_peer_lost_in_torchs_own_call_is_no_error_of_its_own():
    def leave(group):
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.distributed.all_reduce(torch.ones(1))

    error, _ = fails(RankDied, leave)
    assert error.reports[0].state == "waiting"
    assert "torch.distributed.all_reduce" in str(error.reports[0])


# ---- nothing is left ----


def test_fifty_launches_leave_no_descriptor_no_file_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def some(group):
        return group.rank

    launch(some, ranks=2)
    gc.collect()
    me = psutil.Process()
    descriptors, processes = me.num_fds(), len(me.children(recursive=True))
    for _ in range(50):
        launch(some, ranks=2)
    with pytest.raises(RankError):
        launch(lambda group: 1 / 0, ranks=2)
    gc.collect()
    assert me.num_fds() <= descriptors
    assert len(me.children(recursive=True)) <= processes
    assert list(tmp_path.iterdir()) == []


SLEEPER = """
import os, sys, time
import torch
from minitrain.parallel.launch import launch

def work(group):
    if group.rank == 0:
        group.recv(torch.ones(2), source=1)
    loader = torch.utils.data.DataLoader(range(10**6), num_workers=1)
    for _ in loader:
        open(sys.argv[1] + "/begun", "w").close()
        time.sleep(100)

try:
    launch(work, ranks=2)
except KeyboardInterrupt as error:
    print("seconds", time.monotonic() - float(open(sys.argv[1] + "/sent").read()))
    print(type(error).__name__, error, flush=True)
"""


class Script:
    """A script without a main guard, in a session and with a mark of its own."""

    def __init__(self, text, tmp_path, *args, **environment):
        self.mark = uuid.uuid4().hex
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        (tmp_path / "temp").mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(tmp_path / "temp"),
            "MINITRAIN_TEST_MARK": self.mark,
            **environment,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(path), str(tmp_path), *args],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def finish(self, seconds=90):
        output, _ = self.process.communicate(timeout=seconds)
        return output

    def left(self):
        """Every process that carries the mark in its environment."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("MINITRAIN_TEST_MARK") == self.mark:
                    found.append(process)
            except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
                pass
        return found

    def left_after(self, seconds):
        """What is left when `seconds` have passed, or nothing sooner."""
        end = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < end:
            time.sleep(0.1)
        for process in left:
            process.kill()
        return left


def ours_in(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith("minitrain-")]


def until(path, seconds=60):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} did not appear in {seconds} s"
        time.sleep(0.05)


def test_an_interrupt_reports_and_leaves_nothing(tmp_path):
    script = Script(SLEEPER, tmp_path)
    until(tmp_path / "begun")
    (tmp_path / "sent").write_text(str(time.monotonic()))
    script.process.send_signal(signal.SIGINT)
    output = script.finish(20)
    assert float(output.split("seconds ")[1].split()[0]) < 3
    assert "RanksInterrupted interrupted; no rank is left" in output
    assert "rank 0: waiting in recv from rank 1 of float32 [2], script.py, line 8" in output
    assert "rank 1: still at work, script.py, line 12: time.sleep(100)" in output
    assert script.left_after(5) == []
    assert ours_in(tmp_path / "temp") == []


def test_when_the_parent_is_killed_no_rank_is_left(tmp_path):
    script = Script(SLEEPER, tmp_path)
    until(tmp_path / "begun")
    assert len(script.left()) > 2
    script.process.kill()
    script.process.wait(10)
    assert script.left_after(5) == []
    assert ours_in(tmp_path / "temp") == []


def test_a_script_needs_no_main_guard_and_may_fork(tmp_path):
    script = Script(
        """
        import sys
        print("main runs once")
        import torch
        from minitrain.parallel.launch import launch
        def ranks(group):
            print("hello")
            return group.all_reduce(torch.ones(2)).tolist()
        print(launch(ranks, ranks=2), launch(ranks, ranks=2, start_method="fork"))
        """,
        tmp_path,
    )
    output = script.finish()
    assert output.count("main runs once") == 1
    assert output.splitlines()[-1] == "[[2.0, 2.0], [2.0, 2.0]] [[2.0, 2.0], [2.0, 2.0]]"
    assert output.count("[rank 1] hello") == 2
    assert script.left_after(5) == []


def test_under_torchrun_it_runs_in_place(tmp_path):
    text = """
    import torch
    from minitrain.parallel.launch import InputError, launch
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
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    scripts = [Script(text, tmp_path, RANK=rank, LOCAL_RANK=rank, **world) for rank in "01"]
    for script in scripts:
        lines = script.finish().splitlines()
        assert "[(0, 3.0), (1, 3.0)] [1, 1] [(0, 1.0)]" in lines
        assert "use ranks=2, or torchrun --nproc-per-node 3" in lines[-1]


def test_spawn_works_where_there_is_no_fork():
    assert launch(lambda group: group.rank, ranks=2, start_method="spawn") == [0, 1]


# ---- what a person can get wrong ----


@pytest.mark.parametrize("ranks", [0, -1, 2.0, "2", True, None])
def test_ranks_must_be_a_count(ranks):
    with pytest.raises(InputError, match="give a whole number from 1 up"):
        launch(print, ranks=ranks)


def test_more_ranks_than_the_machine_can_hold():
    with pytest.raises(InputError, match=r"more than this machine can hold.*use at most \d+"):
        launch(print, ranks=100_000)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), "60"])
def test_a_timeout_is_some_seconds(timeout):
    with pytest.raises(InputError, match="give the seconds"):
        launch(print, timeout=timeout)


def test_what_is_no_function():
    with pytest.raises(InputError, match="cannot be called"):
        launch(torch.ones(2))


def test_an_argument_that_cannot_travel_is_named():
    def use(group, number, lock):
        return number

    with pytest.raises(InputError, match="argument 'lock', a lock, cannot be sent to the ranks"):
        launch(use, 1, threading.Lock())


def test_a_name_that_the_function_uses_is_named():
    lock = threading.Lock()

    def use(group):
        return lock

    with pytest.raises(InputError, match="'lock', which use uses, a lock, cannot be sent"):
        launch(use)


def test_an_unknown_fabric_gets_the_nearest_name():
    with pytest.raises(InputError, match="did you mean 'h100-nvlink'"):
        launch(print, fabric="h100-nvlnk")


def test_start_methods_are_known():
    with pytest.raises(InputError, match="start_method"):
        launch(print, start_method="thread")
