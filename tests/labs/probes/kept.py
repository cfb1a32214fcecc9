"""What autograd keeps for backward, followed for as long as it keeps it."""

from __future__ import annotations

import weakref

from torch.autograd.graph import saved_tensors_hooks


class Kept:
    """In the graph in place of a tensor: it ends when the graph does."""

    def __init__(self, tensor):
        self.tensor = tensor


def kept_in(references):
    """A context: `references` gets one for each tensor that is kept, and keeps nothing alive."""

    def pack(tensor):
        kept = Kept(tensor)
        references.append(weakref.ref(kept))
        return kept

    return saved_tensors_hooks(pack, lambda kept: kept.tensor)
