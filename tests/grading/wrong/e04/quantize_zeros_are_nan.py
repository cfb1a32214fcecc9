# exercise: fake_quantize
# says: a tile of zeros has scale 1

import torch


def fake_quantize(x, form, tile=None, amax=None):
    R, K = x.shape
    r, c = tile or (R, K)
    padded = torch.nn.functional.pad(x, (0, -K % c, 0, -R % r))
    tiles = padded.unflatten(1, (-1, c)).unflatten(0, (-1, r))
    own = tiles.abs().amax(dim=(1, 3)) if amax is None else amax
    scale = (own / form.largest)[:, None, :, None]
    kept = round_to(tiles / scale, form) * scale
    return kept.flatten(2, 3).flatten(0, 1)[:R, :K]
