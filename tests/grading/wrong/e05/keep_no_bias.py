# exercise: keep
# says: linear layer with a bias


def keep(op):
    name = op.overloadpacket.__name__
    return name == "mm" or name.startswith("_scaled_dot_product_")
