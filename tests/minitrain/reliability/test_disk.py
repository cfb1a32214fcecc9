"""The emulated disk: what POSIX promises, and no more; a real folder does the same operations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.reliability.disk import Folder, FragileDisk, Plug, PowerCut


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


def test_a_slow_folder_takes_its_time(tmp_path):
    import time

    began = time.perf_counter()
    Folder(tmp_path, bytes_per_second=1e6).write("a", bytes(50_000))
    assert time.perf_counter() - began >= 0.05
