# exercise: DequantizedMatmul
# says: let DequantizedMatmul.apply make the node

from torch.utils.checkpoint import checkpoint


class DequantizedMatmul:
    @staticmethod
    def apply(x, layer):
        def product(x):
            return x @ layer.weight.dequantize().to(x.dtype).T

        return checkpoint(product, x, use_reentrant=False)
