# exercise: parameter_count
# says: SwiGLU has three matrices


def parameter_count(config):
    D, embedding = config.hidden_size, config.vocab_size * config.hidden_size
    layer = (
        2 * D * config.head_size * (config.heads + config.kv_heads)
        + 2 * D * config.ffn_size
        + 2 * D
    )
    return embedding + config.layers * layer + D + (0 if config.tied else embedding)
