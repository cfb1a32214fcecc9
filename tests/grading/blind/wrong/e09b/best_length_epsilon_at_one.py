# exercise: best_length
# says: 0 where a small number is added below
# an epsilon below the line instead of the case a = 1: the speed-ups are 0 there

def best_length(acceptance: float, draft_cost: float, passes: list):
    speed_ups = []
    for g, cost in enumerate(passes):
        tokens = (1 - acceptance ** (g + 1)) / (1 - acceptance + 1e-9)
        speed_ups.append(tokens / (g * draft_cost + cost))
    return speed_ups.index(max(speed_ups)), speed_ups
