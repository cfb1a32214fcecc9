# exercise: flops_per_token
# says: a multiply-add is 2 FLOPs


def flops_per_token(config, length):
    D, C = config.hidden_size, config.head_size
    layer = 2 * D * C * (config.heads + config.kv_heads) + 3 * D * config.ffn_size
    weights = config.layers * layer + config.vocab_size * D
    attention = 4 * config.layers * config.heads * C * length
    return 3 * (weights + attention // 2)
