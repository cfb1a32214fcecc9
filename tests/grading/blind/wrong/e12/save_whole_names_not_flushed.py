# exercise: save_whole
# says: until disk.flush_names()
# the names are not flushed, so a step that was "saved" may be gone after a cut

import zlib


def save_whole(disk, step, data):
    disk.write("new.part", zlib.crc32(data).to_bytes(4, "little") + data)
    disk.flush("new.part")
    disk.rename("new.part", f"step-{step:08d}")
