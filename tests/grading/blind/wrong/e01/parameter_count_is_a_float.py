# exercise: parameter_count
# says: so the result is an int
# factors out (1 + K / H) with a true division, so the count is a float (and for H = 3 or 6 may
# not even be whole), but the signature says "-> int".

def parameter_count(config) -> int:
    D, L, H, C = config.hidden_size, config.layers, config.heads, config.head_size
    attention = 2 * D * H * C * (1 + config.kv_heads / H)
    layer = attention + 3 * D * config.ffn_size + 2 * D
    total = config.vocab_size * D + L * layer + D
    if not config.tied:
        total += config.vocab_size * D
    return total
