"""What the grader and the child agree on: the frame of a reply, and where files may be written."""

from __future__ import annotations

import struct

FRAME = struct.Struct("<4s16sQ")  # mark, the run's own number, length of the body
MARK = b"MTR1"
FOLDERS = ("TMPDIR", "HOME", "TORCHINDUCTOR_CACHE_DIR")  # settings that name a folder to write in
