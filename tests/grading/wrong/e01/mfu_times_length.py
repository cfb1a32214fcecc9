# exercise: mfu
# says: is for one token already


def flops_per_token(config, length):
    D, C = config.hidden_size, config.head_size
    layer = 2 * D * C * (config.heads + config.kv_heads) + 3 * D * config.ffn_size
    weights = config.layers * layer + config.vocab_size * D
    return 3 * (2 * weights + 4 * config.layers * config.heads * C * length)


def mfu(tokens_per_second, config, length, peak):
    return tokens_per_second * length * flops_per_token(config, length) / peak
