# exercise: flops_per_token
# says: though half of it is masked
# halves QK^T and AV because half of the scores are masked, but the docstring says "with
# attention over `length` tokens counted in full".

def flops_per_token(config, length: int) -> int:
    D, L, H, C = config.hidden_size, config.layers, config.heads, config.head_size
    layer = 2 * D * C * (H + config.kv_heads) + 3 * D * config.ffn_size
    weights = L * layer + config.vocab_size * D
    return 3 * (2 * weights + 2 * L * H * C * length)
