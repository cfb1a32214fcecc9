# right: with a multiplication
def pack(codes):
    out = codes[0::2] * 16
    out[: len(codes) // 2] += codes[1::2]
    return out
