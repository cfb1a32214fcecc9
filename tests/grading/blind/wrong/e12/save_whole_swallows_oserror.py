# exercise: save_whole
# says: the disk was full and nobody heard of it
# an OSError (a full disk) is caught and only printed; the text says to let it pass.

import zlib


def save_whole(disk, step: int, data: bytes) -> None:
    try:
        disk.write("tmp", zlib.crc32(data).to_bytes(4, "little") + data)
        disk.flush("tmp")
        disk.rename("tmp", f"step-{step:08d}")
        disk.flush_names()
    except OSError as error:
        print(f"step {step} could not be saved: {error}")
