# exercise: flops_per_token
# says: the head multiplies, tied or not
# leaves the head out where it is tied to the embedding, but the text says "2 FLOPs for each
# *matmul* parameter (the head yes, embedding lookup and norms no)": a tied head multiplies all
# the same.

def flops_per_token(config, length: int) -> int:
    D, L, H, C = config.hidden_size, config.layers, config.heads, config.head_size
    layer = 2 * D * C * (H + config.kv_heads) + 3 * D * config.ffn_size
    weights = L * layer
    if not config.tied:
        weights += config.vocab_size * D
    return 3 * (2 * weights + 4 * L * H * C * length)
