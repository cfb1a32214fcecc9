# exercise: mfu
# says: that is 6P
# the well-known 6P FLOPs a token, without attention (and with the embedding)

def mfu(tokens_per_second: float, config, length: int, peak: float) -> float:
    return tokens_per_second * 6 * parameter_count(config) / peak
