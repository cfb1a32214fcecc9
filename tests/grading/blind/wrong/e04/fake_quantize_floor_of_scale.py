# exercise: fake_quantize
# says: need a scale of their size, however small
# The scale has a floor of 1e-12 against division by zero: tiles of tiny numbers get a scale
# that is too large ("however small").

import torch


def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    R, K = x.shape
    r, c = tile if tile is not None else (R, K)
    padded = torch.nn.functional.pad(x, (0, -K % c, 0, -R % r))
    rows, columns = padded.shape[0] // r, padded.shape[1] // c
    tiles = padded.reshape(rows, r, columns, c)
    if amax is None:
        amax = tiles.abs().amax(dim=(1, 3))
    scale = (amax / form.largest).clamp(min=1e-12)[:, None, :, None]
    kept = round_to(tiles / scale, form) * scale
    return kept.reshape(padded.shape)[:R, :K].clone()
