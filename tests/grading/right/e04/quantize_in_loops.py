import torch


def fake_quantize(x, form, tile=None, amax=None):
    """Tile by tile, in place of a copy."""
    out = x.clone()
    height, width = tile if tile is not None else x.shape
    for i, row in enumerate(out.split(height, dim=0)):
        for j, part in enumerate(row.split(width, dim=1)):
            largest = part.abs().max() if amax is None else amax[i, j]
            if largest > 0:
                scale = largest / form.largest
                part.copy_(round_to(part / scale, form) * scale)
    return out
