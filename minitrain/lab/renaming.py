"""Functions on their way to the sandbox, their files under names that a message can show.

A notebook's files are called /tmp/ipykernel_812/101531833.py; nobody but this kernel knows that it
is cell In[49], so the name is put into the code itself before it leaves.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from types import CodeType
from typing import Any

from minitrain.parallel.payload import Pickler


class RenamingPickler(Pickler):
    """Code that goes by value says that it comes from `rename(its file)`."""

    def __init__(self, rename: Callable[[str], str]) -> None:
        self.buffer = io.BytesIO()
        super().__init__(self.buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.rename = rename

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            renamed = value.replace(co_filename=self.rename(value.co_filename))
            return self.dispatch_table[CodeType](renamed)
        return super().reducer_override(value)

    def dumps(self, value: Any) -> bytes:
        self.dump(value)
        return self.buffer.getvalue()
