"""The one frame in which a run's reply travels: mark, the run's own number, length, body."""

from __future__ import annotations

import struct

FRAME = struct.Struct("<4s16sQ")
MARK = b"MTR1"
