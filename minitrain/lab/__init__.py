"""The machinery of the labs: `from minitrain.lab import Lab, show`.

`Lab` is imported at its first use, so that the sandboxed child, which has no use
for it, starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.lab.notebook.lab import Lab

__all__ = ["Lab"]


def __getattr__(name: str) -> Any:
    if name == "Lab":
        from minitrain.lab.notebook.lab import Lab

        return Lab
    raise AttributeError(f"module 'minitrain.lab' has no attribute '{name}'")
