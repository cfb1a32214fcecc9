"""One run of a submission, in a process that was forked for it and ends with it.

In order: files and limits, the probe and its arguments (the grader's own, so they may be
unpickled), the seals and the guard, the submission, the probe. What it returns goes back as plain
data in one frame; the exit status is the zygote's to tell.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
import tempfile
from typing import Any, NoReturn

import cloudpickle

from minitrain.lab.sandbox import limits, loader, plain_data, tampering
from minitrain.lab.sandbox.audit_hook import NOT_ALLOWED, Forbidden, Guard
from minitrain.lab.sandbox.plain_data import FOLDERS, FRAME, MARK
from minitrain.ranks.errors import DeadlineError, DeadlockError, MismatchError, RankDied, RankError
from minitrain.ranks.group import Group
from minitrain.ranks.launch import launch

PR_SET_DUMPABLE = 4


def main(request: int, reply: int, output: int, folder: str) -> NoReturn:
    """Reads the request, runs it, writes the reply, and leaves without any clean-up of Python's."""
    os.setsid()
    if sys.platform == "linux":
        prctl(PR_SET_DUMPABLE, 1)  # the zygote's own protection, which a fork inherits
    with os.fdopen(request, "rb") as file:
        header = plain_data.unpack(file.read())
    _own_files(output, folder)
    limits.apply(limits.Limits(**header["limits"]))
    answer = _answer(header, reply)
    sys.stdout.flush()
    body = plain_data.pack(answer)
    _write(reply, FRAME.pack(MARK, header["nonce"], len(body)) + body)
    os._exit(0)


def prctl(option: int, value: int) -> None:
    """Linux: a property of this process."""
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _own_files(output: int, folder: str) -> None:
    """Nothing to read on stdin, stdout and stderr to the grader, a new folder to work in."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)
    tempfile.tempdir = tempfile.mkdtemp(dir=folder)
    os.chdir(tempfile.tempdir)
    os.environ.update(dict.fromkeys(FOLDERS, tempfile.tempdir))


def _answer(header: dict[str, Any], reply: int) -> dict[str, Any]:
    loader.remember(header["solution"])
    try:
        if header["ranks"]:
            return _launched(header, reply)
        faulthandler.dump_traceback_later(max(header["seconds"] - 0.3, 0.1))
        return {"results": [run_probe(header, ())]}
    except BaseException as error:
        return {"failure": failure(error, set(loader.texts(header["solution"])))}


def _launched(header: dict[str, Any], reply: int) -> dict[str, Any]:
    """The probe on every rank; each packs its own result: no object of theirs comes here."""
    results = launch(
        _on_rank,
        header,
        reply,
        ranks=header["ranks"],
        timeout=header["seconds"],
        fabric=cloudpickle.loads(header["fabric"]),
        start_method="fork",
    )
    traces = [trace.as_dict() for trace in results.traces]
    timing = {"seconds": results.seconds, "emulated_seconds": results.emulated_seconds}
    return {"results": list(results), "traces": traces, "fabric": results.fabric, **timing}


def _on_rank(group: Group, header: dict[str, Any], reply: int) -> bytes:
    os.close(reply)
    return run_probe(header, (group,))


def run_probe(header: dict[str, Any], context: tuple[Any, ...]) -> bytes:
    """Loads the submission, calls `probe(*context, f, *args)`; its value and what was noticed."""
    probe, args = cloudpickle.loads(header["probe"])
    sealed = tampering.snapshot()
    groups = [tampering.GroupSeal(group) for group in context]
    guard = Guard(header["denied"], [tempfile.gettempdir()], header["hidden"])
    if header["guarded"]:
        guard.install()
    solution, problems = loader.load(header["solution"], header["name"])
    guard.loading = False
    try:
        value = probe(*context, solution, *args)
    except NameError as error:  # a statement that should have bound the name may have failed
        error.args = ("; ".join([str(error), *problems[:2]]),)
        raise
    tampered = tampering.broken(sealed) + [name for seal in groups for name in seal.broken()]
    notes = {"tampered": tampered, "forbidden": guard.violations, "problems": problems}
    return plain_data.pack({"value": value, **notes})


def failure(error: BaseException, files: set[str]) -> dict[str, str]:
    """Kind and words for an exception that ended the run; `files` are the submission's own."""
    if isinstance(error, RankError):
        return _rank_failure(error)
    words, where = loader.describe(error), loader.locate(error, files)
    if isinstance(error, SystemExit):
        words = f"it calls sys.exit({error.code!r}){where}: a function returns its result instead"
        return {"kind": "died", "message": words}
    if isinstance(error, EOFError):
        words = f"it reads standard input, where nobody is there to type{where}"
        return {"kind": "exception", "message": words}
    if isinstance(error, (Forbidden, loader.NotDefined, plain_data.WireError)):
        return {"kind": _kind(error, words), "message": str(error) + where}
    return {"kind": _kind(error, words), "message": words + where}


def _rank_failure(error: RankError) -> dict[str, str]:
    kinds = {
        DeadlockError: "deadlock",
        MismatchError: "mismatch",
        RankDied: "died",
        DeadlineError: "timeout",
    }
    known = [kind for cls, kind in kinds.items() if isinstance(error, cls)]
    text = str(error).replace(DeadlineError.ADVICE, "your loop may never end")  # not theirs to set
    return {"kind": known[0] if known else _kind(error, text), "message": text}


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
