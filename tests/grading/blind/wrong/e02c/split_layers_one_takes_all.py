# exercise: split_layers
# says: the slowest stage sets the pace of all
# the whole remainder goes to one middle stage; "what remains goes to stages in the middle, one
# each" and layers "differ by one at most"

def split_layers(layers: int, stages: int) -> list[int]:
    base, more = divmod(layers, stages)
    counts = [base] * stages
    counts[stages // 2] += more
    return counts
