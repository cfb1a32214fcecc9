# exercise: DequantizedMatmul
# says: let DequantizedMatmul.apply make the node


class DequantizedMatmul:
    @staticmethod
    def apply(x, layer):
        return x @ layer.weight.dequantize().to(x.dtype).T
