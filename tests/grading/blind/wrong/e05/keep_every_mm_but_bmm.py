# exercise: keep
# says: compare whole names
# keeps whatever has mm in its name but bmm, so baddbmm too; the docstring says "no other
# product (bmm), nor anything cheap".

import torch


def keep(op: torch._ops.OpOverload) -> bool:
    name = op.overloadpacket.__name__
    return ("mm" in name and name != "bmm") or name.startswith("_scaled_dot_product_")
