# exercise: keep
# says: FLOPs,
# says:  without recomputation: keep


def keep(op):
    return False
