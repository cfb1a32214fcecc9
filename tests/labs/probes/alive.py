"""What is alive of the memory that a submission made, whoever holds it and under whatever name."""

from __future__ import annotations

import weakref

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Alive(TorchDispatchMode):
    """A context, which may be entered many times: the storages that operations in it have made."""

    def __init__(self):
        super().__init__()
        self.made = {}  # storage -> a reference that keeps nothing alive

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        given = storages((arguments, options))
        out = function(*arguments, **(options or {}))
        for key, storage in storages(out).items():
            if key not in given:
                self.made[key] = weakref.ref(storage)
        return out

    def nbytes(self, besides=(), at_least=0):
        """Of those alive that have this many, but those that these tensors lie in."""
        known = storages(list(besides))
        alive = [made() for key, made in self.made.items() if key not in known]
        sizes = [storage.nbytes() for storage in alive if storage is not None]
        return sum(size for size in sizes if size >= at_least)


def storages(tree):
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors}
