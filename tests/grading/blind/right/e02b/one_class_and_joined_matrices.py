# right: one helper makes both Functions; gate|up and q|k|v are one product each; norm's and bias's gradients travel as one message; lookup into zeros by a mask; both sums of the loss in one message
import torch
from minitrain.model.norm import rms_norm
from torch.nn.functional import linear, scaled_dot_product_attention, silu


def crossing(onward, homeward):
    class Crossing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            return onward(tensor.clone(memory_format=torch.contiguous_format))

        @staticmethod
        def backward(ctx, gradient):
            return homeward(gradient.clone(memory_format=torch.contiguous_format))

    return Crossing.apply


def conjugates(there, back):
    return crossing(there, back), crossing(back, there)


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    both = linear(enter(x), torch.cat([w.gate, w.up]))
    gate, up = both.chunk(2, dim=-1)
    return torch.add(leave(linear(silu(gate) * up, w.down)), w.bias)


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    all_three = linear(enter(x), torch.cat([w.q, w.k, w.v]))
    split = all_three.unflatten(-1, (3, -1, w.head_size))  # (B, T, 3, h, C)
    q, k, v = split.permute(2, 0, 3, 1, 4)
    heads = scaled_dot_product_attention(q, k, v, is_causal=True)
    return leave(linear(heads.transpose(1, 2).flatten(2), w.o))


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    norm, bias = tp.copy(torch.stack([w.norm, w.bias]))
    whole = tp.all_gather(rms_norm(x, norm, 1e-6))
    inside = silu(linear(whole, w.gate)) * linear(whole, w.up)
    return x + (tp.reduce_scatter(linear(inside, w.down)) + bias)


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    rows, width = weight.shape
    here = tokens // rows == tp.rank
    out = weight.new_zeros(*tokens.shape, width)
    out[here] = weight[tokens[here] - tp.rank * rows]
    return tp.reduce(out)


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    n, columns = logits.shape
    shifted = logits - tp.max(logits.amax(1)).unsqueeze(1)
    here = targets // columns == tp.rank
    picked = shifted[torch.arange(n, device=logits.device), targets % columns]
    own = torch.where(here, picked, torch.zeros_like(picked))
    total, aim = tp.reduce(torch.stack([shifted.exp().sum(1), own]))
    return (total.log() - aim).sum() / n
