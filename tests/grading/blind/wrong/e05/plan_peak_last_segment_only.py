# exercise: plan_peak
# says: one for each segment with all that its layers save
# looks at the last segment's backward only (as the picture does), not at the largest over all
# segments

def plan_peak(plan, layers):
    held = 0
    for start, stop, mode in plan[:-1]:
        if mode == "full":
            held += layers[start].input_bytes
        else:
            held += sum(layer.saved_bytes for layer in layers[start:stop])
    last = plan[-1]
    return held + sum(layer.saved_bytes for layer in layers[last.start : last.stop])
