"""Families of processes: who descends from whom, what they hold, and how to end them all."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

import psutil

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def family_of(process: psutil.Process) -> list[psutil.Process]:
    """All that descend from it; empty when it is gone."""
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def private_bytes(process: psutil.Process) -> int:
    """Memory of its own: resident, without what it shares with others through files."""
    try:
        if sys.platform == "linux":
            with open(f"/proc/{process.pid}/statm") as file:
                resident, shared = file.read().split()[1:3]
            return (int(resident) - int(shared)) * PAGE
        return process.memory_info().rss
    except (OSError, psutil.Error, ValueError):
        return 0  # it has just ended


def memory_of(processes: list[psutil.Process], limit: int) -> int:
    """Bytes that they hold together; exact only where a quick estimate is over `limit`.

    The estimate counts a page that forks still share once for each of them.
    """
    estimate = sum(map(private_bytes, processes))
    return estimate if estimate <= limit else sum(map(proportional_bytes, processes))


def proportional_bytes(process: psutil.Process) -> int:
    """As `private_bytes`, with a page that n processes share counted as 1/n of it (Linux)."""
    try:
        with open(f"/proc/{process.pid}/smaps_rollup") as file:
            anonymous = next(line for line in file if line.startswith("Pss_Anon:"))
        return int(anonymous.split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return private_bytes(process)


def kill_family(process: psutil.Process) -> None:
    """Freezes, then kills: a process that is stopped cannot fork while its siblings are found."""
    deadline = time.monotonic() + 3
    found: dict[int, psutil.Process] = {}
    while time.monotonic() < deadline:
        new = [p for p in [process, *family_of(process)] if p.pid not in found]
        for member in new:
            found[member.pid] = member
            with suppress(psutil.Error):
                member.suspend()
        if not new:
            break
    for member in found.values():
        with suppress(psutil.Error):
            member.kill()
