# exercise: keep
# says: keep _scaled_dot


def keep(op):
    name = op.overloadpacket.__name__
    return name in ("mm", "addmm")
