def plan_peak(plan, layers):
    """From the back: a segment's own moment, or its rest on top of what it leaves."""
    if not plan:
        return 0
    first, *rest = plan
    inside = layers[first.start : first.stop]
    moment = sum(layer.saved_bytes for layer in inside)
    left = moment if first.mode == "none" else layers[first.start].input_bytes
    return max(moment, left + plan_peak(rest, layers) if rest else 0)
