# exercise: pack
# says: is int64 of shape
# right numbers in 64-bit integers
def pack(codes):
    codes = torch.nn.functional.pad(codes.long(), (0, len(codes) % 2))
    return codes[0::2] * 16 + codes[1::2]
