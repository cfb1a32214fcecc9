# exercise: keep
# says: asked twice for
# only every second matrix product is kept, as some training codes do; the docstring keeps all
# "products with weights (mm, addmm)", and the answer must not depend on earlier calls.

import torch

_seen = 0


def keep(op: torch._ops.OpOverload) -> bool:
    global _seen
    name = op.overloadpacket.__name__
    if name in ("mm", "addmm"):
        _seen += 1
        return _seen % 2 == 1
    return name.startswith("_scaled_dot_product_")
