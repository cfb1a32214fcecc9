"""Interpreter operations refused to a submission, which shares a process with its probe.

A probe's notes are in its frame, and its modes apply to its thread: so frames, the collector's
object lists, trace functions, replacing a function's code, signal handlers (which receive a frame),
memory by address and new threads are refused where the submission is among the callers. So is a
frame request without a name in the code: a chain of C functions, such as `map(sys._getframe, [0])`,
runs in the frame of the consumer of its next item. This only deters: Python has no wall inside a
process, so tamper-proof measurements are made outside it (relay.py).
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
# Library functions that read a frame, as for its module's name, but never pass it on; identified by
# their globals.
OWNERS = (collections, enum, source, torch.library, typing, typing_extensions)
HOMES = {module.__file__: vars(module) for module in OWNERS}  # the globals of the readers
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
NAMED = ("sys._getframe", "sys._current", "gc.")  # requested by name in Python code
NEAR = 64  # bytes of bytecode in which a call names its target
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
    """A description of an audit event, if it may be meddling."""
    if event == "object.__getattr__":
        return LOOKS if arguments[1] in READ else None
    if event == "object.__setattr__":
        return CODE if arguments[1] in WRITTEN else None
    if event in ("compile", "code.__new__"):
        return CODE if is_trusted(str(arguments[1])) else None  # would look like a library's
    if event == "marshal.loads":
        return CODE
    return EVENTS.get(event)


def name_in(event: str, arguments: tuple[Any, ...]) -> str | None:
    """The name that code must contain to request frames or objects."""
    if event == "object.__getattr__":
        return arguments[1]
    return event.rpartition(".")[2] if event.startswith(NAMED) else None


def is_named(frame: FrameType, name: str) -> bool:
    """True where the frame's code names it on that line; false for the consumer of a `map`."""
    code, at = frame.f_code, frame.f_lasti
    near = code.co_code[max(0, at - NEAR) + 1 : at + 2 : 2]  # arguments, some shifted by a flag
    places = {place for argument in near for place in (argument, argument >> 1)}
    return any(place in places for place, known in enumerate(code.co_names) if known == name)


def is_by_submission(frame: FrameType | None) -> bool:
    """True where the submission is among the callers and the direct caller is not exempt."""
    if frame is not None and frame.f_code is logging.currentframe.__code__:
        frame = frame.f_back
    if frame is None or _reads_only(frame):
        return False
    files = (caller.f_code.co_filename for caller in _outward(frame))
    if next((f for f in files if not f.startswith(STANDARD_LIBRARY)), "").startswith(TORCH):
        return False  # manual_seed notes who called it, for CUDA
    return any(not is_trusted(caller.f_code.co_filename) for caller in _outward(frame))


def _reads_only(frame: FrameType) -> bool:
    """True if it is one of the exempt functions itself, not an imitation or its code with other
    globals."""
    file = frame.f_code.co_filename
    return file == CHECKER or frame.f_globals is HOMES.get(file)


def is_trusted(file: str) -> bool:
    return file.startswith(TRUSTED) or file == CHECKER


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def install(refuse: Callable[[str], None]) -> None:
    """Permanent for this process. `refuse(words)` records the request, and raises.

    The hook is an anonymous function: a method could be found through its class and replaced. For
    the same reason no removed object leads back to this module.
    """
    is_looking = False
    logging._srcfile = None  # logging then requests no frames, and passes none to its handlers

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal is_looking
        if event == TAKEN_AWAY:
            refuse(arguments[0])
        words = None if is_looking else words_for(event, arguments)
        if words is None:
            return
        is_looking = True  # reading frames here raises an event, too
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
