"""Requests that a submission may not make of the interpreter that it shares with its probe.

A probe's notes lie in its frame, and its modes hold in its thread: so frames, the collector's lists
of objects, trace functions, other code for a function, signal handlers (which are given a frame),
memory by its address and new threads are refused where the submission is among the callers. So is a
frame that no code asks for by name: a chain of functions in C, such as `map(sys._getframe, [0])`,
runs in the frame of whoever takes its next item. This deters. Python has no wall inside a process,
and what must not be bent at all is measured outside it (relay.py).
"""

from __future__ import annotations

import _signal
import _thread
import collections
import ctypes
import enum
import logging
import os
import signal
import sys
import sysconfig
import threading
import typing
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
import torch.library
import typing_extensions

from minitrain.ranks import source
from minitrain.ranks.source import CHECKER, COURSE_CODE, STANDARD_LIBRARY

LIBRARIES = tuple(sysconfig.get_path(key) for key in ("purelib", "platlib"))
TORCH = os.path.dirname(torch.__file__) + os.sep
TRUSTED = (*COURSE_CODE, STANDARD_LIBRARY, *LIBRARIES, "<frozen ")
# They look at a frame, as for the name of its module, and hand it to nobody: by their own globals.
OWNERS = (collections, enum, source, torch.library, typing, typing_extensions)
HOMES = {module.__file__: vars(module) for module in OWNERS}  # the globals of what reads
for _end in ("", "_external"):
    HOMES[f"<frozen importlib._bootstrap{_end}>"] = vars(sys.modules[f"_frozen_importlib{_end}"])
LOOKS = "looks into the frames or objects of what calls it"
THREADS = "starts a thread, where nothing that it does is measured: use async_op=True to overlap"
CODE = "puts other code into a function"
SIGNALS = "sets a handler of signals"
BYTES = "reads or writes memory by its address"
EVENTS = {
    **dict.fromkeys(("sys._getframe", "sys._current_frames", "sys._current_exceptions"), LOOKS),
    **dict.fromkeys(("gc.get_objects", "gc.get_referrers", "gc.get_referents"), LOOKS),
    **dict.fromkeys(("sys.settrace", "sys.setprofile", "sys.addaudithook"), LOOKS),
    "sys.monitoring.register_callback": LOOKS,
}
NAMED = ("sys._getframe", "sys._current", "gc.")  # asked for by name, in code that is Python
NEAR = 64  # bytes of code in which a call names what it calls
TAKEN = [
    *((owner, "signal", SIGNALS) for owner in (signal, _signal)),
    *((_thread, name, THREADS) for name in ("start_new_thread", "start_new")),
    *((threading, "_start_new_thread", THREADS), (threading, "_start_joinable_thread", THREADS)),
    (_thread, "start_joinable_thread", THREADS),
    *((ctypes, name, BYTES) for name in ("cast", "memmove", "memset")),
]
TAKEN_AWAY = "minitrain.taken_away"
READ = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}
WRITTEN = {"__code__", "__defaults__", "__kwdefaults__"}


def words_for(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Names an audit event, if it may be meddling."""
    if event == "object.__getattr__":
        return LOOKS if arguments[1] in READ else None
    if event == "object.__setattr__":
        return CODE if arguments[1] in WRITTEN else None
    if event in ("compile", "code.__new__"):
        return CODE if is_trusted(str(arguments[1])) else None  # would pass for a library's
    if event == "marshal.loads":
        return CODE
    return EVENTS.get(event)


def name_in(event: str, arguments: tuple[Any, ...]) -> str | None:
    """The name that the code must hold to ask for frames or objects."""
    if event == "object.__getattr__":
        return arguments[1]
    return event.rpartition(".")[2] if event.startswith(NAMED) else None


def is_named(frame: FrameType, name: str) -> bool:
    """True where its code names it on that line. Not whoever is asked for the next of a `map`."""
    code, at = frame.f_code, frame.f_lasti
    near = code.co_code[max(0, at - NEAR) + 1 : at + 2 : 2]  # arguments, some shifted by a flag
    places = {place for argument in near for place in (argument, argument >> 1)}
    return any(place in places for place, known in enumerate(code.co_names) if known == name)


def is_by_submission(frame: FrameType | None) -> bool:
    """True where the submission is among the callers, and none that may is the one who asks."""
    if frame is not None and frame.f_code is logging.currentframe.__code__:
        frame = frame.f_back
    if frame is None or _reads_only(frame):
        return False
    files = (caller.f_code.co_filename for caller in _outward(frame))
    if next((f for f in files if not f.startswith(STANDARD_LIBRARY)), "").startswith(TORCH):
        return False  # manual_seed notes who called it, for CUDA
    return any(not is_trusted(caller.f_code.co_filename) for caller in _outward(frame))


def _reads_only(frame: FrameType) -> bool:
    """It is one of these itself, and not code that says so, or theirs with globals of its own."""
    file = frame.f_code.co_filename
    return file == CHECKER or frame.f_globals is HOMES.get(file)


def is_trusted(file: str) -> bool:
    return file.startswith(TRUSTED) or file == CHECKER


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def install(refuse: Callable[[str], None]) -> None:
    """For the life of this process. `refuse(words)` notes what was asked, and raises.

    The hook is a function that nothing names: a method could be found, by its class, and replaced.
    For the same reason what is taken away leaves nothing of this module behind.
    """
    is_looking = False
    logging._srcfile = None  # logging asks for no frames, and hands none to what was put in it

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal is_looking
        if event == TAKEN_AWAY:
            refuse(arguments[0])
        words = None if is_looking else words_for(event, arguments)
        if words is None:
            return
        is_looking = True  # at frames itself, of which there is an event too
        try:
            frame, name = sys._getframe(1), name_in(event, arguments)
            is_refused = is_by_submission(frame) or bool(name and not is_named(frame, name))
        finally:
            is_looking = False
        if is_refused:
            refuse(f"{words} ({event})")

    sys.addaudithook(hook)
    for owner, name, words in TAKEN:
        if hasattr(owner, name):
            names = {"audit": sys.audit, "event": TAKEN_AWAY, "words": words}
            setattr(owner, name, eval("lambda *_, **__: audit(event, words)", names))
