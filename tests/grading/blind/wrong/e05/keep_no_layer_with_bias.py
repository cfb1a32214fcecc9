# exercise: keep
# says: is a linear layer with a bias
# forgets addmm, the product of a linear layer with a bias; the docstring says "products with
# weights (mm, addmm)".

import torch


def keep(op: torch._ops.OpOverload) -> bool:
    name = op.overloadpacket.__name__
    return name == "mm" or name.startswith("_scaled_dot_product_")
