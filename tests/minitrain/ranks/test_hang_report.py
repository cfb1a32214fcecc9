"""Reports of ranks that cannot go on: every deadlock, mismatch and death here is really caused."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from minitrain.ranks.errors import (
    DeadlineError,
    DeadlockError,
    MismatchError,
    RankDied,
    RankError,
)
from minitrain.ranks.flight_recorder import WAITING
from minitrain.ranks.launch import launch

pytestmark = pytest.mark.timeout(120)


def line_of(text: str) -> int:
    """The line of this file that holds `text`, which a report has to name."""
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.strip() == text)


@pytest.fixture
def settled(monkeypatch):
    """A report comes when every other rank waits or has ended, and not before, however slow."""
    monkeypatch.setattr("minitrain.ranks.crew.GRACE_SECONDS", 30.0)


def when_it_waits(group, act, *args):
    """Calls `act` from a thread of this rank as soon as its main thread waits for the others."""

    def later():
        while group.recorder.status(group.recorder.rank).state != WAITING:
            time.sleep(0.02)
        act(*args)

    threading.Thread(target=later, daemon=True).start()


def fails(error, fn, *args, ranks=2, timeout=20.0):
    """The error that `fn` on `ranks` ends in, and the seconds until it did."""
    begun = time.perf_counter()
    with pytest.raises(error) as caught:
        launch(fn, *args, ranks=ranks, timeout=timeout)
    assert type(caught.value) is error
    assert [report.rank for report in caught.value.reports] == list(range(ranks))
    return caught.value, time.perf_counter() - begun


# ---- deadlocks ----


def both_receive(group):
    x = torch.ones(4)
    group.recv(x, source=1 - group.rank)
    group.send(x, to=1 - group.rank)


def test_a_deadlock_is_told_long_before_the_deadline():
    error, seconds = fails(DeadlockError, both_receive, timeout=60.0)
    assert seconds < 30
    line = line_of("group.recv(x, source=1 - group.rank)")
    for report in error.reports:
        assert (report.state, report.line) == ("waiting", line)
        assert report.operation == f"recv from rank {1 - report.rank} of float32 [4]"
        assert f"line {line}: group.recv(x, source=1 - group.rank)" in str(report)


def both_send(group):
    group.send(torch.ones(4), to=1 - group.rank)
    group.recv(torch.ones(4), source=1 - group.rank)


def ring(group):
    group.recv(torch.ones(1), source=(group.rank - 1) % group.size)


@pytest.mark.parametrize("fn, ranks, kind", [(both_send, 2, "send"), (ring, 3, "recv")])
def test_whoever_waits_in_a_circle_is_named(fn, ranks, kind):
    error, _ = fails(DeadlockError, fn, ranks=ranks)
    assert all(report.operation.startswith(kind) for report in error.reports)
    assert f"ranks {', '.join(map(str, range(ranks)))} wait" in str(error)


def one_returns(group):
    if group.rank == 1:
        return
    group.all_reduce(torch.ones(2, 3))


def test_a_rank_that_returns_early_is_named():
    error, seconds = fails(DeadlockError, one_returns, timeout=60.0)
    assert seconds < 30
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
    error, seconds = fails(DeadlineError, waits_for_a_busy_rank, timeout=4.0)
    assert seconds < 4.0 + 10
    waiting, busy = error.reports
    assert (waiting.state, waiting.operation) == ("waiting", "barrier")
    assert busy.state == "computing"
    assert busy.line in (line_of("while True:"), line_of("while True:") + 1)


def test_a_rank_stuck_in_c_is_seen_too():
    def stuck(group):
        group.barrier()
        sum(range(10**12))  # holds the interpreter: no thread of the rank can run

    error, seconds = fails(DeadlineError, stuck, ranks=1, timeout=3.0)
    assert seconds < 3.0 + 10
    assert "sum(range(10**12))" in str(error)


# ---- mismatches ----


ONES = torch.ones(4)


@pytest.mark.parametrize(
    "fn, words",
    [
        (
            lambda group: group.broadcast(ONES) if group.rank else group.all_reduce(ONES),
            ("all_reduce(sum) of float32 [4]", "broadcast(root 0)"),
        ),
        (
            lambda group: group.all_reduce(torch.ones(4 + group.rank)),
            ("all_reduce(sum) of float32 [4]", "all_reduce(sum) of float32 [5]"),
        ),
        (
            lambda group: group.all_reduce(ONES, op="max" if group.rank else "sum"),
            ("all_reduce(sum)", "all_reduce(max)"),
        ),
        (
            lambda group: group.all_reduce(ONES.double() if group.rank else ONES),
            ("float32 [4]", "float64 [4]"),
        ),
        (
            lambda group: group.broadcast(ONES, root=group.rank),
            ("broadcast(root 0)", "broadcast(root 1)"),
        ),
        (
            lambda group: group.recv(ONES, 0) if group.rank else group.send(torch.ones(3), 1),
            ("send to rank 1 of float32 [3]", "from rank 0 of float32 [4]"),
        ),
        (
            lambda group: group.split(color=0).all_reduce(torch.ones(4 + group.rank)),
            ("all_reduce(sum) of float32 [4]", "float32 [5]"),
        ),
    ],
    ids=["operations", "shapes", "reductions", "dtypes", "roots", "messages", "in a subgroup"],
)
def test_a_mismatch_names_ranks_operations_and_shapes(fn, words, settled):
    error, seconds = fails(MismatchError, fn, timeout=60.0)
    assert seconds < 30
    assert all(word in error.headline for word in words)
    for report, word in zip(error.reports, words):
        assert word in report.operation
        assert report.line is not None and Path(report.file).name == Path(__file__).name
    assert "closed by peer" not in str(error)


# ---- exceptions and deaths ----


def fails_in_a_helper(group):
    if group.rank == 1:
        helper()
    group.all_reduce(torch.ones(4))


def helper():
    raise ValueError("the loss is nan")


def test_an_exception_is_told_once_with_the_way_to_it(settled):
    error, _ = fails(RankError, fails_in_a_helper)
    line = line_of('raise ValueError("the loss is nan")')
    assert error.headline == "rank 1 raised ValueError: the loss is nan"
    assert (error.reports[1].state, error.reports[1].line) == ("failed", line)
    assert error.reports[0].operation == "all_reduce(sum) of float32 [4]"
    assert "in fails_in_a_helper: helper()" in str(error)
    assert "closed by peer" not in str(error)


def test_all_ranks_that_fail_are_named_and_what_they_all_say_is_said_once(settled):
    def everyone(group, words):
        raise RuntimeError(words.format(rank=group.rank))

    error, _ = fails(RankError, everyone, "from {rank}", ranks=3)
    assert [report.state for report in error.reports] == ["failed"] * 3
    assert all(f"rank {rank}: raised RuntimeError: from {rank}" in str(error) for rank in range(3))
    error, _ = fails(RankError, everyone, "too wide", ranks=3)
    assert "  ranks 0, 1, 2: raised RuntimeError: too wide" in str(error)


def writes_its_pid(group, folder, line):
    def when_it_is_seen():  # by the rank's watch, at that line
        while not group.recorder.status(group.rank).seen.endswith(f":{line}"):
            time.sleep(0.02)
        (folder / "part").write_text(str(os.getpid()))
        (folder / "part").rename(folder / "pid")

    if group.rank == 1:
        threading.Thread(target=when_it_is_seen).start()
        time.sleep(60)
    group.all_reduce(torch.ones(4))


def test_a_rank_killed_from_outside_is_named(tmp_path, settled):
    def kill():
        while not (tmp_path / "pid").exists():
            time.sleep(0.02)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    error, _ = fails(RankDied, writes_its_pid, tmp_path, line_of("time.sleep(60)"))
    killer.join()
    waiting, died = error.reports
    assert "killed by signal 9, SIGKILL" in str(died) and died.state == "died"
    assert died.line == line_of("time.sleep(60)")
    assert waiting.operation == "all_reduce(sum) of float32 [4]"
    assert "closed by peer" not in str(error)


def test_a_waiting_rank_obeys_sigterm(run_script):
    """Also where it was forked from a process with a handler of its own, which a wait would hold."""
    output = run_script(
        """
        import os, signal, sys, threading, time
        import torch
        from minitrain.ranks.launch import launch
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        def ranks(group):
            if group.rank == 0:
                threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
                group.all_reduce(torch.ones(4))
            time.sleep(60)
        for start_method in ("forkserver", "fork"):
            try:
                launch(ranks, ranks=2, start_method=start_method)
            except RuntimeError as error:
                print(type(error).__name__, error)
        """
    ).finish()
    seen = "last seen waiting in all_reduce(sum) of float32 [4], script.py, line 9"
    assert output.count("RankDied rank 0: killed by signal 15, SIGTERM") == 2
    assert output.count(seen) == 2


def test_a_signal_to_a_child_of_the_rank_is_not_the_ranks():
    def has_a_child(group):
        from minitrain.ranks import sigterm

        sigterm.GRACE_SECONDS = 0.3
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        if group.rank == 1:
            time.sleep(3)
            return group.send(torch.ones(1), to=0).item()
        child = os.fork()
        if child == 0:
            time.sleep(60)  # with its parent's handler, as a worker of a loader has it
        when_it_waits(group, os.kill, child, signal.SIGTERM)
        return group.recv(torch.zeros(1), source=1).item()

    assert launch(has_a_child, ranks=2) == [1.0, 1.0]


def test_a_rank_gives_up_when_another_does_not_come():
    def impatient(group):
        c10d = torch.distributed.distributed_c10d
        c10d._set_pg_timeout(timedelta(seconds=2), group.process_group)
        if group.rank == 1:
            time.sleep(60)
        group.all_reduce(torch.ones(4))

    error, seconds = fails(RankError, impatient, timeout=60.0)
    words = re.escape(f"in all_reduce(sum) of float32 [4], {Path(__file__).name}, line")
    assert re.search(rf"rank 0 has waited \d+ s {words}", error.headline)
    assert "rank 1 did not come: see what the other ranks do" in error.headline
    assert error.reports[0].operation == "all_reduce(sum) of float32 [4]" and seconds < 20


def test_os_exit_is_named(settled):
    def leave(group):
        group.barrier()  # connects them
        if group.rank == 1:
            os._exit(5)
        group.barrier()

    error, _ = fails(RankDied, leave)
    assert "exited with code 5" in str(error.reports[1])
    assert error.reports[0].operation == "barrier"


def test_a_peer_lost_in_torchs_own_call_is_no_error_of_its_own(tmp_path):
    def leave(group):
        if group.rank == 1:
            while not (tmp_path / "begun").exists():
                time.sleep(0.1)
            time.sleep(1)  # rank 0 waits in torch's call by now
            os.kill(os.getpid(), signal.SIGKILL)
        (tmp_path / "begun").touch()
        torch.distributed.all_reduce(torch.ones(1))

    error, _ = fails(RankDied, leave)
    # "computing" where a busy machine has not told it in time that it is cut off
    assert error.reports[0].state in ("waiting", "computing")
    assert "torch.distributed.all_reduce" in str(error.reports[0])


def test_sigterm_ends_a_wait_though_the_rank_has_a_handler(capsys):
    def handles(group):
        from minitrain.ranks import sigterm

        sigterm.GRACE_SECONDS = 0.5
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        if group.rank == 0:
            when_it_waits(group, os.kill, os.getpid(), signal.SIGTERM)
            group.recv(torch.ones(4), source=1)
        time.sleep(60)

    error, seconds = fails(RankDied, handles)
    line = line_of("group.recv(torch.ones(4), source=1)")
    words = f"waiting in recv from rank 1 of float32 [4], {Path(__file__).name}, line {line}"
    assert f"exited with code 143 before it returned; last seen {words}" in str(error)
    said = "rank 0: ended by SIGTERM while it waited in recv from rank 1 of float32 [4]"
    assert said in capsys.readouterr().err and seconds < 15
