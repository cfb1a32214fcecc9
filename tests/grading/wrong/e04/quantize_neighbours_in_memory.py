# exercise: fake_quantize
# says: a tile is r rows of c columns

import torch


def fake_quantize(x, form, tile=None, amax=None):
    R, K = x.shape
    r, c = tile or (R, K)
    padded = torch.nn.functional.pad(x, (0, -K % c, 0, -R % r))
    tiles = padded.reshape(-1, r * c)
    own = tiles.abs().amax(dim=1) if amax is None else amax.flatten()
    scale = torch.where(own > 0, own / form.largest, 1.0)[:, None]
    kept = round_to(tiles / scale, form) * scale
    return kept.reshape(padded.shape)[:R, :K]
