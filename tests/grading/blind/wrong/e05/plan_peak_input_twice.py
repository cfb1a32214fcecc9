# exercise: plan_peak
# says: look for the peak before `held` grows
# adds the segment's own input before its savings, which include it already (as the picture's 4
# + 4 = 8 boxes suggest)

def plan_peak(plan, layers):
    held = peak = 0
    for start, stop, mode in plan:
        inside = layers[start:stop]
        everything = sum(layer.saved_bytes for layer in inside)
        if mode == "full":
            held += inside[0].input_bytes
            peak = max(peak, held + everything)
        else:
            held += everything
            peak = max(peak, held)
    return peak
