def flops_per_token(config, length):
    """Each matmul of one token: rows in times columns out, forward once and backward twice."""
    width, queries = config.hidden_size, config.heads * config.head_size
    keys = config.kv_heads * config.head_size
    matmuls = [(width, queries), (width, keys), (width, keys), (queries, width)]
    matmuls += [(width, config.ffn_size)] * 3
    matmuls += [(queries, length), (length, queries)]
    macs = config.layers * sum(a * b for a, b in matmuls) + width * config.vocab_size
    return 6 * macs
