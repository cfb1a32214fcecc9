# exercise: keep
# says: keep every name that begins with `_scaled_dot_product_`
# lists three fused kernels by name and so misses others (cuDNN's); the text: "fused attention,
# of any machine", whose "name begins with `_scaled_dot_product_`; what follows depends on the
# machine".

import torch

KEPT = {
    "mm",
    "addmm",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
}


def keep(op: torch._ops.OpOverload) -> bool:
    return op.overloadpacket.__name__ in KEPT
