# exercise: flops_per_token
# says: a norm is no matmul
# counts the weights of the norms as matmul parameters, a fraction of a percent too much, but
# the text says "the head yes, embedding lookup and norms no".

def flops_per_token(config, length: int) -> int:
    D, L, H, C = config.hidden_size, config.layers, config.heads, config.head_size
    layer = 2 * D * C * (H + config.kv_heads) + 3 * D * config.ffn_size + 2 * D
    weights = L * layer + D + config.vocab_size * D
    return 3 * (2 * weights + 4 * L * H * C * length)
