# exercise: keep
# says: keep every name that begins with `_scaled_dot_product_`
# knows the fused kernels of two machines by name, not the others (efficient, cudnn,
# overrideable); the docstring says "fused attention, of any machine".

import torch


def keep(op: torch._ops.OpOverload) -> bool:
    return op.overloadpacket.__name__ in (
        "mm",
        "addmm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
