"""Imported by the server that ranks are forked from, and by no other process.

Whoever stops a job often tells its whole process group (`timeout`, systemd, Slurm), so the server
too. It ignores SIGTERM, as it does SIGINT: it ends with the process that started it, and were it
gone before, the ranks that still save would pass for dead. What is forked from it obeys again.
"""

from __future__ import annotations

import os
import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
