# exercise: save_whole
# says: begins with step-
# the temporary file's name begins with "step-" (and is another one for each step): a cut leaves a
# torn one

import zlib


def save_whole(disk, step, data):
    name = f"step-{step:08d}"
    disk.write(name + ".tmp", zlib.crc32(data).to_bytes(4, "little") + data)
    disk.flush(name + ".tmp")
    disk.rename(name + ".tmp", name)
    disk.flush_names()
