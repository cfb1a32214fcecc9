# exercise: mfu
# says: do not multiply by the length
# multiplied by the length though flops_per_token is per token already

def mfu(tokens_per_second: float, config, length: int, peak: float) -> float:
    return tokens_per_second * length * flops_per_token(config, length) / peak
