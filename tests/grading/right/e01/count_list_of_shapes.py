from math import prod


def parameter_count(config):
    """Writes down every matrix and adds them up."""
    width, inner = config.hidden_size, config.ffn_size
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    block = [(width, queries), (width, keys), (width, keys), (queries, width)]
    block += [(width, inner), (width, inner), (inner, width), (width,), (width,)]
    outside = [(config.vocab_size, width), (width,)]
    if not config.tied:
        outside.append((width, config.vocab_size))
    return config.layers * sum(map(prod, block)) + sum(map(prod, outside))
