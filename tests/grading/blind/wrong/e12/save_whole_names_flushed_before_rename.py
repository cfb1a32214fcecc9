# exercise: save_whole
# says: until disk.flush_names()
# flush_names comes before the rename, so after the return a power cut may still take the new
# name away.

import zlib


def save_whole(disk, step: int, data: bytes) -> None:
    disk.write(".saving", zlib.crc32(data).to_bytes(4, "little") + data)
    disk.flush(".saving")
    disk.flush_names()
    disk.rename(".saving", f"step-{step:08d}")
