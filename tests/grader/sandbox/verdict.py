"""Turns what a run left into its reply, or into the words that say why there is none.

Exactly one whole frame with this run's own number, from a process that then ended by itself: all
else is a failure of the submission, and says what it was.
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
KINDS = {"processes": "forbidden", "disk": "output", "reply": "output"}  # else as the cause


def reply_of(ending: Ending, request: Request) -> Reply:
    """The reply, with what the probe returned on each rank as its results.

    SubmissionFailed or NotAttempted, with words for the learner, where it counts for nothing.
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
    """It came to its end by itself, with exit status 0."""
    if ending.cause == "timeout":
        raise SubmissionFailed("timeout", _slow(ending, request))
    if ending.cause is not None:
        words = _no_result(request.limits)[ending.cause]
        raise SubmissionFailed(KINDS.get(ending.cause, ending.cause), words)
    assert ending.status is not None, "a run without a cause has ended"
    if ending.status != 0:
        raise SubmissionFailed("died", _no_result(request.limits)["died"])


def _no_result(limits: Limits) -> dict[str, str]:
    """For each cause of an `Ending`, the words that say so."""
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
    """On no rank a meter was bent or passed by, or something done that is forbidden."""
    tampered = sorted({str(name) for rank in ranks for name in rank.tampered})
    if tampered:
        raise SubmissionFailed("tampered", f"it has tampered with {', '.join(tampered[:5])}")
    forbidden = sorted({str(act) for rank in ranks for act in rank.forbidden})
    if forbidden:
        raise SubmissionFailed("forbidden", f"not allowed: it {', '.join(forbidden[:5])}")
    if past_the_meter is not None:
        raise SubmissionFailed("tampered", str(past_the_meter))


def _slow(ending: Ending, request: Request) -> str:
    """With the line where it was, from the stack that the child dumped just before the end."""
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
