# exercise: keep
# says: bmm, the product of two activations


def keep(op):
    name = op.overloadpacket.__name__
    return name in ("mm", "addmm", "bmm") or name.startswith("_scaled_dot_product_")
