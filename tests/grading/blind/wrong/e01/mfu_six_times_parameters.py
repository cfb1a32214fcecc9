# exercise: mfu
# says: that is 6P
# takes 6·P FLOPs a token (all parameters, with the embedding, and no attention) and never uses
# `length`, but the text wants "the model's FLOPs per second" by `flops_per_token`.

def mfu(tokens_per_second: float, config, length: int, peak: float) -> float:
    D, V = config.hidden_size, config.vocab_size
    attention = 2 * D * config.head_size * (config.heads + config.kv_heads)
    layer = attention + 3 * D * config.ffn_size + 2 * D
    parameters = V * D + config.layers * layer + D + (0 if config.tied else V * D)
    return tokens_per_second * 6 * parameters / peak
