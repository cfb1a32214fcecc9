def state_bytes(psi, stage, n, per=(2, 4, 12)):
    w, g, o = (psi * size for size in per)
    if stage > 0:
        o = o / n
    if stage > 1:
        g = g / n
    if stage > 2:
        w = w / n
    return [w, g, o]
