# exercise: keep
# says: compare whole names
# every name that ends in "mm", except "bmm", is kept: baddbmm too, a batched product of scores,
# though only "products with weights (mm, addmm) and fused attention" are to be kept.

import torch


def keep(op: torch._ops.OpOverload) -> bool:
    name = op.overloadpacket.__name__
    if name.startswith("_scaled_dot_product_"):
        return True
    return name.endswith("mm") and name != "bmm"
