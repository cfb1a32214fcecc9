# exercise: newest_whole
# says: a step of nine digits is later than one of eight
# sorts names as strings, so step 100000000 (9 digits, what :08d gives) counts as older than
# step 99999999.

import re
import zlib


def newest_whole(disk):
    names = [n for n in disk.names() if re.fullmatch(r"step-\d{8,}", n)]
    for name in sorted(names, reverse=True):
        raw = disk.read(name)
        if raw[:4] == zlib.crc32(raw[4:]).to_bytes(4, "little"):
            return int(name[5:]), raw[4:]
    return None
