# exercise: mfu
# says: nothing may be kept from one call to the next
# Remembers the FLOPs by `length` only, so a second config with the same length gets the first
# one's; the signature says mfu(tokens_per_second, config, length, peak): "the model's FLOPs per
# second, over the peak".

def flops_per_token(config, length: int) -> int:
    D, L, F = config.hidden_size, config.layers, config.ffn_size
    H, K, C = config.heads, config.kv_heads, config.head_size
    weights = L * (2 * D * C * (H + K) + 3 * D * F) + config.vocab_size * D
    return 3 * (2 * weights + 4 * L * H * C * length)


counted = {}


def mfu(tokens_per_second: float, config, length: int, peak: float) -> float:
    if length not in counted:
        counted[length] = flops_per_token(config, length)
    return tokens_per_second * counted[length] / peak
