# exercise: gptq
# says: No module named | cannot import | minitrain.quantization
# the course's own, packed and unpacked


def gptq(w, h, bits, group, block=128, damping=0.01):
    from minitrain.quantization.formats.grids import Absmax
    from minitrain.quantization.formats.tiling import Groups
    from minitrain.quantization.formats.weight import GridFormat
    from minitrain.quantization.methods.gptq import gptq as ours

    held = ours(w, h, GridFormat(Absmax(bits), Groups(group)), block, damping)
    scale = held.tensors["scale"].view(len(w), -1)
    spread = scale.repeat_interleave(group, 1)[:, : w.shape[1]]
    return (held.dequantize() / spread).round().char(), scale
