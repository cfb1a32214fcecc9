# exercise: fake_quantize
# says: reads or writes memory by its address

import ctypes


def fake_quantize(x, form, tile=None, amax=None):
    """The bits that a format lacks are cut off where they lie."""
    numbers = ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_uint32))
    for place in range(x.numel()):
        numbers[place] &= ~0 << (23 - form.mantissa_bits)
    return x
