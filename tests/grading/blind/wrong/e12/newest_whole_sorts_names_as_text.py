# exercise: newest_whole
# says: a step of nine digits is later than one of eight
# Sorts the names as text, not the steps as numbers: step 100000000 has nine digits and sorts
# before step 99999999.

import zlib


def newest_whole(disk):
    names = [name for name in disk.names() if name.startswith("step-")]
    for name in sorted(names, reverse=True):
        raw = disk.read(name)
        if raw[:4] == zlib.crc32(raw[4:]).to_bytes(4, "little"):
            return int(name.removeprefix("step-")), raw[4:]
    return None
