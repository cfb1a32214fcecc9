# exercise: DDP
# says: a hook is handed the *parameter* | never averaged | is None

import torch


class DDP(torch.nn.Module):
    def __init__(self, model, group, bucket_bytes=25 * 2**20):
        super().__init__()
        self.module, self.group = model, group
        for p in model.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.hook)

    def forward(self, *inputs, **options):
        return self.module(*inputs, **options)

    def hook(self, gradient):
        self.group.all_reduce(gradient.data, op="avg")

    def finish(self):
        pass
