"""One run: a child that holds the meter and the reply channel, and its forks that do the work.

The child runs no code of the submission. It alone holds the reply's descriptor and its nonce; each
process that it forks closes the first, has never seen the second, and cannot read the child's
memory (not "dumpable").

    child ─ files, limits ─┬─ a call: one fork ────────┬─ reads the nonce, sends the reply
                           └─ a launch: ranks, relay ──┘

In such a fork, in order: the probe and its arguments (the grader's own, so they may be unpickled),
the snapshot of the meters and the audit hook, the submission, the probe. The result is sent back in
one frame (request.py).
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import secrets
import sys
import tempfile
from dataclasses import replace
from typing import Any, NoReturn

import cloudpickle

from minitrain.lab.sandbox import limits, loader, meddling, plain_data, tampering
from minitrain.lab.sandbox.audit_hook import AuditHook
from minitrain.lab.sandbox.causes import failure, how_it_died
from minitrain.lab.sandbox.plain_data import PlainDataError
from minitrain.lab.sandbox.relay import Relay, differs
from minitrain.lab.sandbox.request import (
    INTRUDED,
    NONCE_BYTES,
    Reply,
    Request,
    Returned,
    framed,
    unframed,
)
from minitrain.lab.sandbox.seccomp import forbid_other_ways
from minitrain.lab.sandbox.wire import Marks
from minitrain.ranks.group import Group
from minitrain.ranks.launch import launch

PR_SET_DUMPABLE = 4


def main(request_fd: int, reply_fd: int, output_fd: int, folder: str) -> NoReturn:
    """Reads the request, runs it, writes the reply, and exits without Python's clean-up."""
    os.setsid()
    size = os.fstat(request_fd).st_size - NONCE_BYTES
    request = Request.unpack(os.pread(request_fd, size, 0))
    _own_files(output_fd, folder)
    limits.apply(request.limits)
    body = _run(request, (request_fd, reply_fd))
    sys.stdout.flush()
    _write(reply_fd, framed(body, os.pread(request_fd, NONCE_BYTES, size)))
    os._exit(0)


def prctl(option: int, value: int) -> None:
    """Linux: sets a property of this process."""
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _own_files(output_fd: int, folder: str) -> None:
    """Empty stdin, stdout and stderr to the grader, a new working folder."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output_fd, 1), (output_fd, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output_fd)
    tempfile.tempdir = tempfile.mkdtemp(dir=folder)
    os.chdir(tempfile.tempdir)
    os.environ.update(dict.fromkeys(limits.FOLDERS, tempfile.tempdir))


def _run(request: Request, private: tuple[int, ...]) -> bytes:
    """Runs in a fork, or on ranks: a packed `Reply`, with a failure if they gave no answer."""
    loader.remember(request.solution)
    try:
        return _launched(request, private) if request.ranks else _called(request, private)
    except (PlainDataError, pickle.UnpicklingError):
        kind, words = "tampered", INTRUDED
    except BaseException as error:
        kind, words = failure(error, set(request.solution.lines))
    return plain_data.pack(vars(Reply(failure=(kind, words))))


def _called(request: Request, private: tuple[int, ...]) -> bytes:
    """Runs the probe in a fork of this process, and marks its reply with the nonce."""
    ours, theirs = os.pipe()
    mark = secrets.token_bytes(NONCE_BYTES)
    pid = os.fork()
    if pid == 0:
        _withdraw((*private, ours))
        faulthandler.dump_traceback_later(max(request.seconds - 0.3, 0.1))
        try:
            reply = Reply([call_probe(request, ())])
        except BaseException as error:
            reply = Reply(failure=failure(error, set(request.solution.lines)))
        sys.stdout.flush()
        _write(theirs, reply.pack(mark))
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as file:
        data = file.read(request.limits.reply_bytes + 2 * NONCE_BYTES)
    if len(data) > request.limits.reply_bytes:
        return plain_data.pack(vars(Reply(failure=("output", request.limits.too_large))))
    status = os.waitpid(pid, 0)[1]
    if data and not status:
        return unframed(data, mark)
    return plain_data.pack(vars(Reply(failure=("died", how_it_died(status)))))


def _launched(request: Request, private: tuple[int, ...]) -> bytes:
    """Runs the probe on every rank; each packs its own result, so none of its objects is loaded
    here."""
    relay = Relay(request.ranks)
    results = launch(
        _on_rank,
        request,
        private,
        ranks=request.ranks,
        timeout=request.seconds,
        fabric=None if request.fabric is None else cloudpickle.loads(request.fabric),
        start_method="fork",
        carrier=relay,
    )
    relay.finish()
    differences = map(differs, relay.notes, results.traces)
    reply = Reply(
        list(results),
        traces=[trace.as_dict() for trace in results.traces],
        seconds=results.seconds,
        emulated_seconds=results.emulated_seconds,
        fabric=results.fabric,
        notes=[[tuple(note) for note in notes] for notes in relay.notes],
        past_the_meter=next(filter(None, differences), None),
    )
    return plain_data.pack(vars(reply))


def _on_rank(group: Group, request: Request, private: tuple[int, ...]) -> bytes:
    _withdraw(private)
    denied = [*request.denied, tempfile.gettempdir()]  # no rank may read another's files
    tempfile.tempdir = tempfile.mkdtemp()
    os.chdir(tempfile.tempdir)
    group.trace.marks = Marks(group.process_group)
    forbid_other_ways()
    return call_probe(replace(request, denied=denied), (group,))


def _withdraw(private: tuple[int, ...]) -> None:
    """Closes the child's descriptors in a fork, and makes it dumpable again, for the watch."""
    for fd in private:
        os.close(fd)
    if sys.platform == "linux":
        prctl(PR_SET_DUMPABLE, 1)


def call_probe(request: Request, context: tuple[Any, ...]) -> bytes:
    """Loads the submission `f`, calls `probe(*context, f, *args)`: a packed `Returned`."""
    probe, args = cloudpickle.loads(request.probe)
    meters = tampering.snapshot()
    groups = [tampering.GroupSnapshot(group) for group in context]
    hook = AuditHook(request.denied, [tempfile.gettempdir()], request.hidden)
    hook.install()
    meddling.install(hook.refuse)
    _hide_ourselves()
    submission, problems = loader.load(request.solution, request.name)
    hook.loading = False
    try:
        value = plain_data.pack(probe(*context, submission, *args))  # the last of its code runs
    except NameError as error:  # the statement that binds the name may have failed
        error.args = ("; ".join([str(error), *problems[:2]]),)
        raise
    tampered = tampering.changed(meters) + [name for group in groups for name in group.changed()]
    return Returned(plain_data.unpack(value), tampered, hook.violations).pack()


def _hide_ourselves() -> None:
    """Gives the submission a copy of the sandbox's modules, which it may patch freely."""
    package = sys.modules[__package__ or ""]
    for name in list(vars(package)):
        if sys.modules.pop(f"{package.__name__}.{name}", None) is not None:
            delattr(package, name)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
