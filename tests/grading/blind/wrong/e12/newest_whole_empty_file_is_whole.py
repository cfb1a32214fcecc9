# exercise: newest_whole
# says: a file of fewer than four bytes has no checksum
# compares checksums as integers, and int.from_bytes(b"") == crc32(b"") == 0: an empty (torn)
# file counts as whole.

import re
import zlib


def newest_whole(disk):
    steps = [int(m[1]) for m in (re.fullmatch(r"step-(\d{8,})", n) for n in disk.names()) if m]
    for step in sorted(steps, reverse=True):
        content = disk.read(f"step-{step:08d}")
        if int.from_bytes(content[:4], "little") == zlib.crc32(content[4:]):
            return step, content[4:]
    return None
