# exercise: best_length
# says: the speed-up of length 0 was taken for 1
# the speed-up of length 0 is written down as 1, whatever passes[0] is

def best_length(acceptance: float, draft_cost: float, passes: list):
    speeds = [1.0]
    for g in range(1, len(passes)):
        tokens = sum(acceptance**i for i in range(g + 1))
        speeds.append(tokens / (g * draft_cost + passes[g]))
    best = max(range(len(speeds)), key=speeds.__getitem__)
    return best, speeds
