"""Weights in 8 to 2 bits: storage formats, methods that reduce the rounding error, fast kernels.

    from minitrain.quantization import named, quantize_model, save_quantized
    model = quantize_model(model, named("int4-g64"), METHODS["gptq"], batches)

    formats    integers, NF4 and FP4, FP8 and MX: codes, scales, packing, dequantization
    layers     linear layers over a quantized weight: dequantized, integer matmuls, packed kernels
    methods    GPTQ, AWQ, SmoothQuant, rotation; layers/fake.py is quantization-aware training
    model      a whole model, calibrated block by block (calibration); folder saves and loads it
    sensitivity    which layers need the bits
    plain      each idea in a few lines on float tensors, as lab e08 builds it

Shapes, beside the course's legend: `D width in  F width out  G groups  g numbers of a group`.
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "named": "formats.names",
        "quantize_model": "model",
        "save_quantized": "folder",
        "load_quantized": "folder",
    },
)
