# exercise: keep
# says: compare whole names


def keep(op):
    name = op.overloadpacket.__name__
    return "mm" in name or "scaled_dot" in name
