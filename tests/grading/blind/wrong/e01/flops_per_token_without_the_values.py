# exercise: flops_per_token
# says: attention's part is half of what it must be
# counts the product of queries and keys, and not that of weights and values
def flops_per_token(config, length: int) -> int:
    D, C = config.hidden_size, config.head_size
    layer = 2 * D * C * (config.heads + config.kv_heads) + 3 * D * config.ffn_size
    weights = config.layers * layer + config.vocab_size * D
    scores = 2 * C * length * config.heads
    return 6 * weights + 3 * config.layers * scores
