"""`python -m minitrain …` in this process: what it prints on each stream, and its exit code."""

from __future__ import annotations

import contextlib
import io
import sys
from subprocess import CompletedProcess
from unittest.mock import patch

from minitrain.__main__ import main


def minitrain(*words: str) -> CompletedProcess[str]:
    """As a process of its own would end, without the second that each import of it takes."""
    out, err, code = io.StringIO(), io.StringIO(), None
    with patch.object(sys, "argv", ["minitrain", *words]):
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                code = end.code
    return CompletedProcess(words, code or 0, out.getvalue(), err.getvalue())
