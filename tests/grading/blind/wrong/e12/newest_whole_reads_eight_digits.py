# exercise: newest_whole
# says: a step of nine digits is later than one of eight
# reads the first eight digits only, so step 100000001 counts as step 10000000 and 99999999 as the newest

import zlib


def newest_whole(disk):
    names = [n for n in disk.names() if n.startswith("step-") and n[5:13].isdigit()]
    for name in sorted(names, key=lambda n: int(n[5:13]), reverse=True):
        raw = disk.read(name)
        if len(raw) >= 4 and raw[:4] == zlib.crc32(raw[4:]).to_bytes(4, "little"):
            return int(name[5:13]), raw[4:]
    return None
