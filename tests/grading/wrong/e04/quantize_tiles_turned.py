# exercise: fake_quantize
# says: r counts rows, c columns

import torch


def fake_quantize(x, form, tile=None, amax=None):
    R, K = x.shape
    c, r = tile or (K, R)
    padded = torch.nn.functional.pad(x, (0, -K % c, 0, -R % r))
    tiles = padded.unflatten(1, (-1, c)).unflatten(0, (-1, r))
    own = tiles.abs().amax(dim=(1, 3)) if amax is None else amax
    scale = torch.where(own > 0, own / form.largest, 1.0)[:, None, :, None]
    kept = round_to(tiles / scale, form) * scale
    return kept.flatten(2, 3).flatten(0, 1)[:R, :K]
