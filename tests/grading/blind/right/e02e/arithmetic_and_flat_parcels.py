# right: zigzag computes the inverse by arithmetic on token numbers and gets places from it; ulysses picks the key heads that each rank's query heads read by index and sends one flat parcel a rank.
import torch
from torch.nn.functional import scaled_dot_product_attention


def zigzag(length, size):
    if length % (2 * size) != 0:
        raise ValueError(f"2·{size} does not divide {length}")
    half = length // (2 * size)
    token = torch.arange(length)
    chunk = torch.div(token, half, rounding_mode="floor")
    rank = torch.minimum(chunk, 2 * size - 1 - chunk)
    is_late = (chunk >= size).to(torch.int64)
    inverse = (2 * rank + is_late) * half + token % half
    places = torch.argsort(inverse).view(size, 2 * half)
    return places, inverse


def ulysses(q, k, v, size, exchange):
    B, H, t, C = q.shape
    if H % size:
        raise ValueError(f"N = {size} does not divide H = {H}")
    mine, readers = H // size, H // k.shape[1]  # query heads: of a rank, of a key head

    parcels = []
    for rank in range(size):
        first, last = rank * mine, (rank + 1) * mine - 1
        read = slice(first // readers, last // readers + 1)
        content = (q[:, first : last + 1], k[:, read], v[:, read])
        parcels.append(torch.cat([z.reshape(-1) for z in content]))
    kept = read.stop - read.start  # key heads of a rank, the same on all
    arrived = exchange(torch.stack(parcels))  # (N, numbers)

    def unpack(numbers, heads):
        pieces = numbers.reshape(size, B, heads, t, C)
        return pieces.permute(1, 2, 0, 3, 4).reshape(B, heads, size * t, C)

    counts = (mine, kept, kept)
    flat = arrived.split([B * heads * t * C for heads in counts], dim=1)
    whole = [unpack(numbers, heads) for numbers, heads in zip(flat, counts)]
    out = scaled_dot_product_attention(*whole, is_causal=True, enable_gqa=True)

    pieces = out.unflatten(2, (size, t)).permute(2, 0, 1, 3, 4)  # (N, B, h, t, C)
    back = exchange(pieces.contiguous())
    return back.permute(1, 0, 2, 3, 4).reshape(B, H, t, C)
