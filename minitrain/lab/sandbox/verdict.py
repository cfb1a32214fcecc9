"""From what a run left to its reply, or to the words that say why there is none.

Exactly one complete frame with this run's own number, from a process that then ended by itself: all
else is a failure of the submission, and says what it was.
"""

from __future__ import annotations

import os
import re
import signal
from typing import Any

from minitrain.lab.failures import NotAttempted, SubmissionFailed
from minitrain.lab.sandbox import plain_data
from minitrain.lab.sandbox.limits import Limits
from minitrain.lab.sandbox.plain_data import FRAME, MARK
from minitrain.lab.sandbox.watch import Outcome

NO_RESULT = {
    "memory": "it used more than {memory:.1f} GB of memory",
    "processes": "it started more than {processes} processes",
    "output": "it printed more than {output:.0f} MB",
    "disk": "it wrote more than {disk:.0f} MB of files",
    "reply": "what it returns is larger than {reply:.0f} MB",
    "died": "it ended the process that grades it: does it call os.kill?",
}


def judge(
    outcome: Outcome, nonce: bytes, limits: Limits, seconds: float, lines: dict[str, list[str]]
) -> dict[str, Any]:
    """The reply; raises SubmissionFailed or NotAttempted with words for the learner.

    `lines`: those of the submission, by file.
    """
    if outcome.cause == "timeout":
        raise SubmissionFailed("timeout", _slow(outcome, seconds, lines))
    if outcome.cause is not None:
        words = NO_RESULT[outcome.cause].format(
            memory=limits.memory_bytes / 2**30,
            processes=limits.processes,
            output=limits.output_bytes / 2**20,
            reply=limits.reply_bytes / 2**20,
            disk=limits.disk_bytes / 2**20,
        )
        kinds = {"processes": "forbidden", "disk": "output", "reply": "output"}
        raise SubmissionFailed(kinds.get(outcome.cause, outcome.cause), words)
    assert outcome.status is not None, "a run without a cause has ended"
    if outcome.status != 0:
        raise SubmissionFailed("died", _ending(outcome.status))
    return _checked(_parsed(bytes(outcome.reply), nonce))


def _parsed(data: bytes, nonce: bytes) -> dict[str, Any]:
    """The body of the one frame that there must be."""
    if not data:
        raise SubmissionFailed("died", "it left without a result, as os._exit does")
    try:
        mark, number, length = FRAME.unpack_from(data)
        if mark != MARK or number != nonce or len(data) != FRAME.size + length:
            raise plain_data.WireError("not the one frame of this run")
        reply = plain_data.unpack(data[FRAME.size :])
        if not isinstance(reply, dict) or not {"results", "failure"} & set(reply):
            raise plain_data.WireError("no reply")
    except (plain_data.WireError, ValueError, OverflowError) as error:
        words = "it wrote on the channel that belongs to the grader"
        raise SubmissionFailed("tampered", words) from error
    return reply


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    """Unpacks every rank's result; a bent meter or a forbidden act makes it count for nothing."""
    if "failure" in reply:
        kind, message = str(reply["failure"]["kind"]), str(reply["failure"]["message"])
        if kind == "not attempted":
            raise NotAttempted(message)
        raise SubmissionFailed(kind, message)
    try:
        results = [plain_data.unpack(result) for result in reply["results"]]
        notes = [{k: list(map(str, r[k])) for k in ("tampered", "forbidden")} for r in results]
        values = [result["value"] for result in results]
    except (plain_data.WireError, KeyError, TypeError) as error:
        raise SubmissionFailed(
            "tampered", "its result is not as the grader's probe sends it"
        ) from error
    for kind, words in (
        ("tampered", "it has tampered with {}"),
        ("forbidden", "not allowed: it {}"),
    ):
        found = sorted({name for note in notes for name in note[kind]})
        if found:
            raise SubmissionFailed(kind, words.format(", ".join(found[:5])))
    return {**reply, "results": values}


def _slow(outcome: Outcome, seconds: float, lines: dict[str, list[str]]) -> str:
    """With the line where it was, from the stack that the child dumped just before the end."""
    text = outcome.output.decode(errors="replace")
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', text[text.rfind("Timeout (") :])
    own = [frame for frame in frames if frame[0] in lines]
    words = f"it was not finished after {seconds:.3g} s: an endless loop, or a wait for nobody?"
    if not own:
        return words
    file, line, function = own[0]
    text = "".join(lines[file][int(line) - 1 : int(line)]).strip()
    return f"{words} It was at {os.path.basename(file)}, line {line}, in {function}: `{text}`"


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        causes = {signal.SIGXCPU: "out of CPU time", signal.SIGXFSZ: "it wrote too large a file"}
        name = causes.get(number) or signal.Signals(number).name
        return f"its process was killed ({name})"
    return (
        f"its process ended with exit code {os.WEXITSTATUS(status)} and no result, as os._exit does"
    )
