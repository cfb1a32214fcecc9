# exercise: best_length
# says: expected
# of equally fast lengths it takes the greatest (the maximum of pairs), not the least

def best_length(acceptance: float, draft_cost: float, passes: list):
    speed_ups = []
    for g, cost in enumerate(passes):
        tokens = sum(acceptance**i for i in range(g + 1))
        speed_ups.append(tokens / (g * draft_cost + cost))
    _, best = max((s, g) for g, s in enumerate(speed_ups))
    return best, speed_ups
