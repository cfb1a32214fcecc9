# right: gives the rest one by one to the stages that are nearest to the middle
def split_layers(layers: int, stages: int) -> list[int]:
    counts = [layers // stages for _ in range(stages)]
    nearest = sorted(range(stages), key=lambda r: abs(r - (stages - 1) / 2))
    for r in nearest[: layers % stages]:
        counts[r] += 1
    return counts
