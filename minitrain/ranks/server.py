"""Preparation of the server that ranks are forked from; no other process imports this file.

Stopping a job often signals its whole process group (`timeout`, systemd, Slurm), and so the server
too. It ignores SIGTERM, as it does SIGINT, and ends with the process that started it: if it ended
earlier, ranks that are still saving would be taken for dead. Processes forked from it obey again.

It is the server's last import: `LOADED` records the modification time of every source, so that a
rank can see whether one was edited since (`process.enter`).
"""

from __future__ import annotations

import os
import signal

from minitrain.ranks.process import edited_at, own_modules

signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))

LOADED = {name: edited_at(module) for name, module in own_modules().items()}
