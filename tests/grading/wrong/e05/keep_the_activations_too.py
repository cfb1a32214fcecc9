# exercise: keep
# says: silu


def keep(op):
    name = op.overloadpacket.__name__
    return name in ("mm", "addmm", "silu", "mul") or name.startswith("_scaled_dot_product_")
