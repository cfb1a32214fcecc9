"""Turns a run's output into its reply, or into a message why there is none.

Exactly one whole frame with this run's own number, from a process that then exited by itself:
anything else is a failure of the submission, with its cause.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

from minitrain.lab.failures import NotAttempted, SubmissionFailed
from minitrain.lab.sandbox import plain_data
from minitrain.lab.sandbox.limits import Limits
from minitrain.lab.sandbox.plain_data import PlainDataError
from minitrain.lab.sandbox.request import INTRUDED, Reply, Request, Returned
from minitrain.lab.sandbox.watch import Ending

MB, GB = 2**20, 2**30
KINDS = {"processes": "forbidden", "disk": "output", "reply": "output"}  # others map to themselves


def reply_of(ending: Ending, request: Request) -> Reply:
    """The reply, with the probe's return value on each rank as results.

    SubmissionFailed or NotAttempted, with a message for the learner, if it is invalid.
    """
    _check_ending(ending, request)
    reply = _sent(bytes(ending.reply), request.nonce)
    try:
        if reply.failure is not None:
            raise _failure(*reply.failure)
        ranks = [Returned(**plain_data.unpack(result)) for result in reply.results]
        _check_conduct(ranks, reply.past_the_meter)
    except (PlainDataError, TypeError, ValueError) as error:
        words = "its result is not as the grader's probe sends it"
        raise SubmissionFailed("tampered", words) from error
    return replace(reply, results=[rank.value for rank in ranks])


def _check_ending(ending: Ending, request: Request) -> None:
    """Checks that the run exited by itself, with status 0."""
    if ending.cause == "timeout":
        raise SubmissionFailed("timeout", _slow(ending, request))
    if ending.cause is not None:
        words = _no_result(request.limits)[ending.cause]
        raise SubmissionFailed(KINDS.get(ending.cause, ending.cause), words)
    assert ending.status is not None, "a run without a cause has ended"
    if ending.status != 0:
        raise SubmissionFailed("died", _no_result(request.limits)["died"])


def _no_result(limits: Limits) -> dict[str, str]:
    """The message for each cause of an `Ending`."""
    return {
        "memory": f"it used more than {limits.memory_bytes / GB:.1f} GB of memory",
        "processes": f"it started more than {limits.processes} processes",
        "output": f"it printed more than {limits.output_bytes / MB:.0f} MB",
        "disk": f"it wrote more than {limits.disk_bytes / MB:.0f} MB of files",
        "reply": limits.too_large,
        "died": "it ended the process that grades it: does it call os.kill?",
    }


def _sent(data: bytes, nonce: bytes) -> Reply:
    try:
        return Reply.unpack(data, nonce)
    except PlainDataError as error:
        raise SubmissionFailed("tampered", INTRUDED) from error


def _failure(kind: str, message: str) -> SubmissionFailed | NotAttempted:
    if kind == "not attempted":
        return NotAttempted(str(message))
    return SubmissionFailed(str(kind), str(message))


def _check_conduct(ranks: list[Returned], past_the_meter: str | None) -> None:
    """Checks that no rank manipulated or bypassed a meter, or did anything forbidden."""
    tampered = sorted({str(name) for rank in ranks for name in rank.tampered})
    if tampered:
        raise SubmissionFailed("tampered", f"it has tampered with {', '.join(tampered[:5])}")
    forbidden = sorted({str(act) for rank in ranks for act in rank.forbidden})
    if forbidden:
        raise SubmissionFailed("forbidden", f"not allowed: it {', '.join(forbidden[:5])}")
    if past_the_meter is not None:
        raise SubmissionFailed("tampered", str(past_the_meter))


def _slow(ending: Ending, request: Request) -> str:
    """A timeout message with the current line, from the stack dumped just before the end."""
    text, lines = ending.output.decode(errors="replace"), request.solution.lines
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', text[text.rfind("Timeout (") :])
    own = [frame for frame in frames if frame[0] in lines]
    waited = f"it was not finished after {request.seconds:.3g} s"
    words = f"{waited}: an endless loop, or a wait for nobody?"
    if not own:
        return words
    file, line, function = own[0]
    text = "".join(lines[file][int(line) - 1 : int(line)]).strip()
    return f"{words} It was at {os.path.basename(file)}, line {line}, in {function}: `{text}`"
