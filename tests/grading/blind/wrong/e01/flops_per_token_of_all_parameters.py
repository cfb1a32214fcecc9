# exercise: flops_per_token
# says: leave out the norms and the embedding's lookup
# takes all parameters for weights of matmuls, beside attention's products
def flops_per_token(config, length: int) -> int:
    attention = 4 * config.layers * config.heads * config.head_size * length
    return 3 * (2 * parameter_count(config) + attention)
