# exercise: DDP
# says: waited in the hook

import torch


class DDP(torch.nn.Module):
    def __init__(self, model, group, bucket_bytes=25 * 2**20):
        super().__init__()
        self.module, self.group = model, group
        self.parameters_here = [p for p in model.parameters() if p.requires_grad]
        for p in self.parameters_here:
            p.register_post_accumulate_grad_hook(self.hook)

    def forward(self, *inputs, **options):
        return self.module(*inputs, **options)

    def hook(self, p):
        self.group.all_reduce(p.grad, op="avg")

    def finish(self):
        pass
