"""Why a sandboxed run gave no result: a kind of `SubmissionFailed`, and a message."""

from __future__ import annotations

import os
import signal

from minitrain.lab.sandbox import loader
from minitrain.lab.sandbox.audit_hook import NOT_ALLOWED, Forbidden
from minitrain.lab.sandbox.plain_data import PlainDataError
from minitrain.ranks.errors import DeadlineError, DeadlockError, MismatchError, RankDied, RankError
from minitrain.words import signal_text

PAST_THE_GROUP = (
    "it talks past the group's meter: torch.distributed has no process group on ranks that are "
    "graded, so that nothing is sent unseen; use `group`"
)


def failure(error: BaseException, files: set[str]) -> tuple[str, str]:
    """Kind and message for an exception that ended the run; `files`: the submission's own."""
    if isinstance(error, RankError):
        return _rank_failure(error)
    words, where = loader.describe(error), loader.locate(error, files)
    if "process group has not been initialized" in words:
        return "tampered", PAST_THE_GROUP + where
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
    if "process group has not been initialized" in str(error):
        return "tampered", f"{PAST_THE_GROUP}\n{error}"
    text = str(error).replace(DeadlineError.ADVICE, "your loop may never end")  # not theirs to set
    return known[0] if known else _kind(error, text), text


def _kind(error: BaseException, text: str) -> str:
    if isinstance(error, Forbidden) or NOT_ALLOWED in text:
        return "forbidden"
    if isinstance(error, NotImplementedError) or "NotImplementedError" in text:
        return "not attempted"
    no_memory = isinstance(error, MemoryError) or "MemoryError" in text
    return "memory" if no_memory or "can't allocate memory" in text else "exception"


def how_it_died(status: int) -> str:
    """`status` as os.waitpid gives it."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        causes = {signal.SIGXCPU: "out of CPU time", signal.SIGXFSZ: "it wrote too large a file"}
        return f"its process was killed ({causes.get(number) or signal_text(number)})"
    code = os.WEXITSTATUS(status)
    left = f"ended with exit code {code}" if code else "left"
    return f"its process {left} without a result, as os._exit does"
