"""One run of a submission, in a process that was forked for it and ends with it.

In order: files and limits, the probe and its arguments (the grader's own, so they may be
unpickled), the snapshot of what measures and the audit hook, the submission, the probe. What it
returns goes back in one frame (request.py); the exit status is the zygote's to tell.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
import tempfile
from typing import Any, NoReturn

import cloudpickle

from minitrain.lab.sandbox import limits, loader, tampering
from minitrain.lab.sandbox.audit_hook import NOT_ALLOWED, AuditHook, Forbidden
from minitrain.lab.sandbox.plain_data import PlainDataError
from minitrain.lab.sandbox.request import Reply, Request, Returned
from minitrain.ranks.errors import DeadlineError, DeadlockError, MismatchError, RankDied, RankError
from minitrain.ranks.group import Group
from minitrain.ranks.launch import launch

PR_SET_DUMPABLE = 4


def main(request_fd: int, reply_fd: int, output_fd: int, folder: str) -> NoReturn:
    """Reads the request, runs it, writes the reply, and leaves without any clean-up of Python's."""
    os.setsid()
    if sys.platform == "linux":
        prctl(PR_SET_DUMPABLE, 1)  # the zygote's own protection, which a fork inherits
    with os.fdopen(request_fd, "rb") as file:
        request = Request.unpack(file.read())
    _own_files(output_fd, folder)
    limits.apply(request.limits)
    reply = _run(request, reply_fd)
    sys.stdout.flush()
    _write(reply_fd, reply.pack(request.nonce))
    os._exit(0)


def prctl(option: int, value: int) -> None:
    """Linux: a property of this process."""
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _own_files(output_fd: int, folder: str) -> None:
    """Nothing to read on stdin, stdout and stderr to the grader, a new folder to work in."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output_fd, 1), (output_fd, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output_fd)
    tempfile.tempdir = tempfile.mkdtemp(dir=folder)
    os.chdir(tempfile.tempdir)
    os.environ.update(dict.fromkeys(limits.FOLDERS, tempfile.tempdir))


def _run(request: Request, reply_fd: int) -> Reply:
    """In this process, or on ranks that it launches; whatever is raised becomes the failure."""
    loader.remember(request.solution)
    try:
        if request.ranks:
            return _launched(request, reply_fd)
        faulthandler.dump_traceback_later(max(request.seconds - 0.3, 0.1))
        return Reply([call_probe(request, ())])
    except BaseException as error:
        return Reply(failure=failure(error, set(request.solution.lines)))


def _launched(request: Request, reply_fd: int) -> Reply:
    """The probe on every rank; each packs its own result: no object of theirs comes here."""
    results = launch(
        _on_rank,
        request,
        reply_fd,
        ranks=request.ranks,
        timeout=request.seconds,
        fabric=None if request.fabric is None else cloudpickle.loads(request.fabric),
        start_method="fork",
    )
    return Reply(
        list(results),
        traces=[trace.as_dict() for trace in results.traces],
        seconds=results.seconds,
        emulated_seconds=results.emulated_seconds,
        fabric=results.fabric,
    )


def _on_rank(group: Group, request: Request, reply_fd: int) -> bytes:
    os.close(reply_fd)
    return call_probe(request, (group,))


def call_probe(request: Request, context: tuple[Any, ...]) -> bytes:
    """Loads the submission `f`, calls `probe(*context, f, *args)`: a packed `Returned`."""
    probe, args = cloudpickle.loads(request.probe)
    meters = tampering.snapshot()
    groups = [tampering.GroupSnapshot(group) for group in context]
    hook = AuditHook(request.denied, [tempfile.gettempdir()], request.hidden)
    hook.install()
    submission, problems = loader.load(request.solution, request.name)
    hook.loading = False
    try:
        value = probe(*context, submission, *args)
    except NameError as error:  # a statement that should have bound the name may have failed
        error.args = ("; ".join([str(error), *problems[:2]]),)
        raise
    tampered = tampering.changed(meters) + [name for group in groups for name in group.changed()]
    return Returned(value, tampered, hook.violations).pack()


def failure(error: BaseException, files: set[str]) -> tuple[str, str]:
    """Kind and words for an exception that ended the run; `files` are the submission's own."""
    if isinstance(error, RankError):
        return _rank_failure(error)
    words, where = loader.describe(error), loader.locate(error, files)
    if isinstance(error, SystemExit):
        left = f"it calls sys.exit({error.code!r}){where}"
        return "died", f"{left}: a function returns its result instead"
    if isinstance(error, EOFError):
        return "exception", f"it reads standard input, where nobody is there to type{where}"
    if isinstance(error, (Forbidden, loader.NotDefined, PlainDataError)):
        return _kind(error, words), str(error) + where
    return _kind(error, words), words + where


def _rank_failure(error: RankError) -> tuple[str, str]:
    kinds = {
        DeadlockError: "deadlock",
        MismatchError: "mismatch",
        RankDied: "died",
        DeadlineError: "timeout",
    }
    known = [kind for cls, kind in kinds.items() if isinstance(error, cls)]
    text = str(error).replace(DeadlineError.ADVICE, "your loop may never end")  # not theirs to set
    return known[0] if known else _kind(error, text), text


def _kind(error: BaseException, text: str) -> str:
    if isinstance(error, Forbidden) or NOT_ALLOWED in text:
        return "forbidden"
    if isinstance(error, NotImplementedError) or "NotImplementedError" in text:
        return "not attempted"
    no_memory = isinstance(error, MemoryError) or "MemoryError" in text
    return "memory" if no_memory or "can't allocate memory" in text else "exception"


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
