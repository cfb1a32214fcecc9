"""Lab e12's versions: against brute force, the package's own, and plausible wrong ones; and its disk:
what POSIX promises, and no more, while a real folder does the same operations."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.planning.failures.intervals import daly_interval
from minitrain.reliability.disk import Folder, FragileDisk, Plug, PowerCut
from minitrain.reliability.plain import (
    AsyncSaver,
    SpikeRule,
    best_interval,
    newest_whole,
    reshard,
    save_naive,
    save_whole,
    slow_ranks,
)
from minitrain.reliability.spikes import SpikeGuard
from minitrain.reliability.stragglers import slow_ranks as by_compute

from ..training.toys import toy_state


def after_every_cut(save):
    """What may be left of step 1 and a save of step 2, however far it came."""
    for after in range(9):
        disk = FragileDisk()
        save_whole(disk, 1, b"old")
        try:
            save(Plug(disk, after), 2, b"new state")
        except PowerCut:
            yield from disk.after_cut()
            continue
        return (yield from disk.after_cut())


def torn(disk):
    names = [name for name in disk.names() if name.startswith("step-")]
    return newest_whole(disk)[0] != int(max(names)[5:])


def test_no_power_cut_leaves_a_torn_step_and_the_naive_way_does():
    assert not any(map(torn, after_every_cut(save_whole)))
    assert any(map(torn, after_every_cut(save_naive)))
    for disk in after_every_cut(save_whole):
        assert newest_whole(disk) in [(1, b"old"), (2, b"new state")]


def test_what_has_returned_survives():
    disk = FragileDisk()
    save_whole(disk, 7, b"state")
    assert {newest_whole(left) for left in disk.after_cut()} == {(7, b"state")}


def test_a_saver_writes_copies_one_at_a_time_and_raises_what_failed():
    written, tensor = {}, torch.zeros(3)

    def write(step, tensors):
        if step == 2:
            raise OSError("full")
        written[step] = tensors["x"].clone()

    with ThreadPoolExecutor(1) as pool:
        saver = AsyncSaver(pool.submit, write)
        for step in (1, 2):
            saver.save(step, {"x": tensor})
            tensor += 1
        with pytest.raises(OSError, match="full"):
            saver.save(3, {"x": tensor})
        saver.save(3, {"x": tensor})
        saver.wait()
    assert {step: x.tolist() for step, x in written.items()} == {1: [0.0] * 3, 3: [2.0] * 3}


@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 6))
def test_resharded_parts_are_the_whole(elements, old, new):
    whole, size = torch.arange(elements), -(-elements // old)
    files = torch.cat([whole, torch.full((old * size - elements,), -1)]).view(old, size)
    parts = [
        reshard(lambda file, a, b: files[file, a:b], elements, old, new, rank, whole.dtype)
        for rank in range(new)
    ]
    joined = torch.cat(parts)
    assert joined[:elements].tolist() == whole.tolist() and not joined[elements:].any()
    assert {len(part) for part in parts} == {-(-elements // new)}


@given(st.lists(st.floats(0.01, 1.0), min_size=3, max_size=9).filter(lambda c: len(c) % 2))
def test_slow_ranks_are_those_of_the_package(seconds):
    reached = torch.tensor(seconds, dtype=torch.float64)[:, None].expand(-1, 5)
    times = torch.stack([torch.zeros_like(reached), reached, torch.ones_like(reached)], dim=2)
    assert slow_ranks(times) == by_compute(reached[:, 0].tolist())


@given(st.lists(st.sampled_from([2.0, 2.02, 1.98, 2.01, 9.0, math.nan]), min_size=30, max_size=80))
def test_the_rule_is_the_packages(losses):
    guard, rule = SpikeGuard(toy_state(), most=99), SpikeRule()
    for loss in losses:
        before = guard.rollbacks
        taken = guard(loss, 1.0)
        want = "take" if taken else "back" if guard.rollbacks > before else "skip"
        assert rule(loss) == want


@given(st.floats(0.1, 1e3), st.integers(1, 10**5), st.integers(1, 999), st.floats(1e3, 1e8))
def test_the_interval_is_dalys(save, chips, failures, chip_hours):
    between = chip_hours * 3600 / failures / chips
    got = best_interval(save, chips, failures, chip_hours)
    assert got == pytest.approx(daly_interval(save, between), rel=1e-9)
    assert best_interval(save, chips, 0, chip_hours) == math.inf


# --- the disk ---


def files(disk):
    return {name: disk.read(name) for name in disk.names()}


def left(disk):
    """Every folder that a cut may leave, each once."""
    found = []
    for after in disk.after_cut():
        if files(after) not in found:
            found.append(files(after))
    return found


def test_bytes_that_are_not_flushed_may_be_gone_half_there_or_whole():
    disk = FragileDisk({"a": b"old"})
    disk.write("a", b"1234")
    assert left(disk) == [{"a": b""}, {"a": b"12"}, {"a": b"1234"}]
    disk.flush("a")
    assert left(disk) == [{"a": b"1234"}]


def test_names_are_undone_in_order_and_bytes_are_not_waited_for():
    disk = FragileDisk({"a": b"old"})
    disk.write("new", b"1234")
    disk.rename("new", "a")
    torn = [{"a": b""}, {"a": b"12"}, {"a": b"1234"}]
    assert [state for state in left(disk) if set(state) == {"a"}] == [{"a": b"old"}, *torn]
    disk.flush("a")
    assert {"a": b"old"} in left(disk) and {"a": b""} not in left(disk)
    disk.flush_names()
    assert left(disk) == [{"a": b"1234"}]


OPERATIONS = st.sampled_from(["write", "flush", "rename", "flush_names"])


@given(st.lists(st.tuples(OPERATIONS, st.sampled_from("abc"), st.sampled_from("abc"))))
def test_a_folder_and_the_emulated_disk_show_the_same(tmp_path_factory, script):
    folder = Folder(tmp_path_factory.mktemp("folder"))
    fragile = FragileDisk()
    for number, (operation, name, other) in enumerate(script):
        if operation in ("flush", "rename") and (name not in fragile.names() or name == other):
            continue
        arguments = {
            "write": (name, b"x" * number),
            "flush": (name,),
            "rename": (name, other),
            "flush_names": (),
        }[operation]
        for disk in (folder, fragile):
            getattr(disk, operation)(*arguments)
    assert files(folder) == files(fragile)
    assert files(fragile) in left(fragile), "nothing need be lost"


def test_after_a_cut_nothing_more_happens():
    disk = FragileDisk()
    plug = Plug(disk, after=1)
    plug.write("a", b"1")
    for _ in range(2):
        with pytest.raises(PowerCut):
            plug.write("b", b"2")
    assert plug.names() == ["a"] and plug.read("a") == b"1"


def test_a_name_that_is_not_there_is_told():
    with pytest.raises(InputError, match="the disk has no b: it has a"):
        FragileDisk({"a": b""}).flush("b")
