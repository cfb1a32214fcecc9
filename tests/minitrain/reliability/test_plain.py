"""Lab e12's disk: what POSIX promises, and no more, while a real folder does the same operations. The
lab's other versions are graded by its checks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.reliability.disk import Folder, FragileDisk, Plug, PowerCut
from minitrain.reliability.plain import (
    newest_whole,
    save_naive,
    save_whole,
)


def torn(disk):
    names = [name for name in disk.names() if name.startswith("step-")]
    return newest_whole(disk)[0] != int(max(names)[5:])


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


@settings(deadline=None)
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


def test_no_power_cut_leaves_a_torn_step_and_the_naive_way_does():
    assert not any(map(torn, after_every_cut(save_whole)))
    assert any(map(torn, after_every_cut(save_naive)))
    for disk in after_every_cut(save_whole):
        assert newest_whole(disk) in [(1, b"old"), (2, b"new state")]
