# exercise: AsyncSaver
# the copy's memory is made once and used again: the write before is complete, so its place is
# free; a bound call is started
from functools import partial

import torch


class AsyncSaver:
    def __init__(self, start, write):
        self._start = start
        self._write = write
        self._under_way = []
        self._places = {}

    def _place(self, name, tensor):
        place = self._places.get(name)
        alike = place is not None and (place.shape, place.dtype, place.device) == (
            tensor.shape,
            tensor.dtype,
            tensor.device,
        )
        return place if alike else torch.empty_like(tensor, requires_grad=False)

    def save(self, step: int, tensors: dict[str, torch.Tensor]) -> None:
        self.wait()
        self._places = {name: self._place(name, t) for name, t in tensors.items()}
        for name, place in self._places.items():
            place.copy_(tensors[name].detach())
        handle = self._start(partial(self._write, step, dict(self._places)))
        self._under_way.append(handle)

    def wait(self) -> None:
        while self._under_way:
            self._under_way.pop().result()
