# exercise: keep
# says: True or False is asked for


def keep(op):
    return op.overloadpacket.__name__
