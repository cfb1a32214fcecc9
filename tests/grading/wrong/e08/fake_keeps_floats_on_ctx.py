# exercise: fake_quantize
# says: a mask of bools

import torch


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, scale, bits):
        m = 2 ** (bits - 1) - 1
        ctx.codes, ctx.largest = (w / scale).round(), m
        return ctx.codes.clamp(-m, m) * scale

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.codes.abs() <= ctx.largest), None, None


def fake_quantize(w, scale, bits):
    return Straight.apply(w, scale, bits)
