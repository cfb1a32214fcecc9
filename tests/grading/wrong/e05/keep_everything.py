# exercise: keep
# says: keep fewer


def keep(op):
    return True
