# exercise: flops_per_token
# says: the head multiplies, tied or not
# Takes all parameters less embedding and norms: where the head is tied, its matmul is gone with
# the embedding.

def flops_per_token(config, length: int) -> int:
    D, L = config.hidden_size, config.layers
    norms = (2 * L + 1) * D
    in_matmuls = parameter_count(config) - config.vocab_size * D - norms
    attention = 4 * L * config.heads * config.head_size * length
    return 3 * (2 * in_matmuls + attention)
