# exercise: newest_whole
# says: of three files that are whole
# compares the checksum big end first, so that nothing is whole

import zlib


def newest_whole(disk):
    steps = [int(name[5:]) for name in disk.names() if name.startswith("step-")]
    for step in sorted(steps, reverse=True):
        content = disk.read(f"step-{step:08d}")
        checksum, data = content[:4], content[4:]
        if len(checksum) == 4 and zlib.crc32(data).to_bytes(4, "big") == checksum:
            return step, data
    return None
