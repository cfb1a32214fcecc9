# exercise: keep
# says: keep every name that begins with `_scaled_dot_product_`
# The prefix "_scaled_dot_product_" stands in a list of whole names, so it equals no operation's
# name: fused attention is never kept.

import torch


def keep(op: torch._ops.OpOverload) -> bool:
    name = op.overloadpacket.__name__
    return name in ("mm", "addmm", "_scaled_dot_product_")
