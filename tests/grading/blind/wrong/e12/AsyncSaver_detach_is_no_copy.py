# exercise: AsyncSaver
# says: Write a copy, made before save returns
# detach() only, which shares the memory: the next step changes what is being written


class AsyncSaver:
    def __init__(self, start, write):
        self.start, self.write, self.handle = start, write, None

    def save(self, step, tensors):
        self.wait()
        copies = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
        self.handle = self.start(self.write, step, copies)

    def wait(self):
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.result()
