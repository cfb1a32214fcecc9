# exercise: flops_per_token
# says: the head multiplies, tied or not
# leaves the head out where it is tied, though it multiplies all the same

def flops_per_token(config, length: int) -> int:
    D, C = config.hidden_size, config.head_size
    layer = 2 * D * C * (config.heads + config.kv_heads) + 3 * D * config.ffn_size
    matmul = config.layers * layer
    if not config.tied:
        matmul += config.vocab_size * D
    return 3 * (2 * matmul + 4 * config.layers * config.heads * C * length)
