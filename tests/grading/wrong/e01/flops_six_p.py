# exercise: flops_per_token
# says: 6·P is for large models


def flops_per_token(config, length):
    D, C = config.hidden_size, config.head_size
    layer = 2 * D * C * (config.heads + config.kv_heads) + 3 * D * config.ffn_size + 2 * D
    embedding = config.vocab_size * D
    return 6 * (embedding * (1 if config.tied else 2) + config.layers * layer + D)
