# exercise: best_length
# says: g + 1 tokens a round, not g
# where every draft is kept (a = 1) it counts g tokens a round, not g + 1: the bonus token is
# forgotten there

def best_length(acceptance, draft_cost, passes):
    speeds = []
    for g, cost in enumerate(passes):
        if acceptance == 1:
            expected = max(g, 1)
        else:
            expected = (1 - acceptance ** (g + 1)) / (1 - acceptance)
        speeds.append(expected / (g * draft_cost + cost))
    return speeds.index(max(speeds)), speeds
