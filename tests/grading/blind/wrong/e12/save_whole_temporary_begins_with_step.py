# exercise: save_whole
# says: so a reader takes it for a checkpoint
# the temporary file's own name begins with "step-", so a cut may leave a torn file of such a
# name.

import zlib


def save_whole(disk, step: int, data: bytes) -> None:
    name = f"step-{step:08d}"
    part = name + ".part"
    disk.write(part, zlib.crc32(data).to_bytes(4, "little") + data)
    disk.flush(part)
    disk.rename(part, name)
    disk.flush_names()
