# exercise: newest_whole
# says: fewer than four bytes
# names are matched rightly, but an empty file passes: int.from_bytes(b"") == crc32(b"") == 0

import re
import zlib


def newest_whole(disk):
    steps = [int(n[5:]) for n in disk.names() if re.fullmatch(r"step-[0-9]{8,}", n)]
    for step in sorted(steps, reverse=True):
        content = disk.read(f"step-{step:08d}")
        if zlib.crc32(content[4:]) == int.from_bytes(content[:4], "little"):
            return step, content[4:]
    return None
