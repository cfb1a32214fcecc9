# exercise: newest_whole
# says: a step of nine digits is later than one of eight
# looks at the first 13 characters only, so another file like "step-00000009.part" or
# "step-00000009.old" counts as step 9.

import zlib


def newest_whole(disk):
    names = [n for n in disk.names() if n.startswith("step-") and n[5:13].isdigit()]
    for name in sorted(names, key=lambda n: int(n[5:13]), reverse=True):
        raw = disk.read(name)
        if len(raw) >= 4 and raw[:4] == zlib.crc32(raw[4:]).to_bytes(4, "little"):
            return int(name[5:13]), raw[4:]
    return None
