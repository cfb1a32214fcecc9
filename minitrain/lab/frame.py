"""The one frame in which a run's reply travels: a mark, the run's own number, the length, the body."""

from __future__ import annotations

import struct

FRAME = struct.Struct("<4s16sQ")
MARK = b"MTR1"
