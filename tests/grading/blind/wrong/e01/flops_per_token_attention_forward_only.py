# exercise: flops_per_token
# says: attention has a backward too
# attention's products not times 3

def flops_per_token(config, length: int) -> int:
    D, C = config.hidden_size, config.head_size
    layer = 2 * D * C * (config.heads + config.kv_heads) + 3 * D * config.ffn_size
    matmul = config.layers * layer + config.vocab_size * D
    return 6 * matmul + 4 * config.layers * config.heads * C * length
