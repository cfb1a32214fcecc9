"""A short name for any content, as vLLM gives one to each block (SHA-256)."""

from __future__ import annotations

from hashlib import sha256


def digest(*parts: object) -> bytes:
    """32 bytes for any values; no two others have the same."""
    return sha256(repr(parts).encode()).digest()
