# exercise: fake_quantize
# says: take the given amax, whichever of the two is larger
# A given amax does not stand for the tiles' own: the larger of the two is taken, so nothing is
# ever clamped.

import torch


def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    R, K = x.shape
    r, c = tile if tile is not None else (R, K)
    padded = torch.nn.functional.pad(x, (0, -K % c, 0, -R % r))
    rows, columns = padded.shape[0] // r, padded.shape[1] // c
    tiles = padded.reshape(rows, r, columns, c)
    own = tiles.abs().amax(dim=(1, 3))
    amax = own if amax is None else torch.maximum(amax, own)
    scale = amax / form.largest
    scale = torch.where(amax == 0, torch.ones_like(scale), scale)[:, None, :, None]
    kept = round_to(tiles / scale, form) * scale
    return kept.reshape(padded.shape)[:R, :K].clone()
