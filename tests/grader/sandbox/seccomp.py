"""Linux: refuses system calls by which graded ranks could bypass their group (seccomp).

A rank needs no socket, no foreign shared memory, no writable file and no other program: its
messages go through the relay, over a connection opened before. The kernel enforces this for the
calling thread and all that it starts, C code included; where it cannot, the audit hook remains.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # the latter: "Operation not permitted"
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF opcodes
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16  # offsets in the kernel's input to the program
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
OTHER_ABI = 0x40000000  # and above: the same calls again, under other numbers
# architecture: its mark; refused: socket bind connect, shmget shmat mq_open mknod, ptrace and
# its like, io_uring, openat2, execve and its like; refused for writing: number -> which argument
# holds the flags
TABLES = {
    "x86_64": (
        0xC000003E,
        (41, 49, 42, 29, 30, 240, 133, 259, 85, 101, 310, 311, 438, 425, 437, 59, 322),
        {2: 1, 257: 2},
    ),
    "aarch64": (
        0xC00000B7,
        (198, 200, 203, 194, 196, 180, 33, 117, 270, 271, 438, 425, 437, 221, 281),
        {56: 2},
    ),
}


def forbid_other_ways() -> bool:
    """Permanent for this thread; False where the kernel lacks support."""
    table = TABLES.get(platform.machine())
    if sys.platform != "linux" or table is None:
        return False
    code = b"".join(struct.pack("<HBBI", *line) for line in program(*table))
    lines = ctypes.create_string_buffer(code)
    whole = struct.pack("@HP", len(code) // 8, ctypes.addressof(lines))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.c_char_p(whole), 0, 0) == 0


def program(
    architecture: int, refused: tuple[int, ...], writing: dict[int, int]
) -> list[tuple[int, int, int, int]]:
    """The filter: lines of (operation, lines to skip if true, if false, operand)."""
    lines = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, REFUSE),
        (LOAD, 0, 0, NUMBER_AT),
        (AT_LEAST, 0, 1, OTHER_ABI),
        (RETURN, 0, 0, REFUSE),
    ]
    for number in refused:
        lines += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    for number, place in writing.items():
        lines += [
            (EQUAL, 0, 4, number),
            (LOAD, 0, 0, ARGUMENTS_AT + 8 * place),
            (ANY_BIT, 0, 1, WRITING),
            (RETURN, 0, 0, REFUSE),
            (RETURN, 0, 0, ALLOW),
        ]
    return [*lines, (RETURN, 0, 0, ALLOW)]
