def flops_per_token(config, length):
    """All parameters, but for those that multiply nothing, and attention's own products."""
    norms = (2 * config.layers + 1) * config.hidden_size
    lookup = 0 if config.tied else config.vocab_size * config.hidden_size
    weights = parameter_count(config) - norms - lookup
    products = 2 * config.heads * config.head_size * length
    return 6 * (weights + config.layers * products)
