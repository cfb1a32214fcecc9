# exercise: flops_per_token
# a list of all matmuls (rows in, rows out) of one token, 2 FLOPs each, the two attention products
# among them
import math


def flops_per_token(config, length: int) -> int:
    width, queries = config.hidden_size, config.heads * config.head_size
    keys = config.kv_heads * config.head_size
    layer = [(width, queries), (width, keys), (width, keys), (queries, width)]
    layer += [(width, config.ffn_size)] * 2 + [(config.ffn_size, width)]
    layer += [(queries, length), (length, queries)]  # scores, then values
    matmuls = layer * config.layers + [(width, config.vocab_size)]
    forward = sum(2 * math.prod(shape) for shape in matmuls)
    return forward + 2 * forward
