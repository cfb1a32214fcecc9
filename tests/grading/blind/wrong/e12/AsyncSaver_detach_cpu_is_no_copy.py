# exercise: AsyncSaver
# says: the training changes its tensors in place while they are written
# .detach().cpu() of a tensor on the CPU is the same memory: the next step changes what is being
# written.

class AsyncSaver:
    def __init__(self, start, write):
        self.start, self.write, self.handle = start, write, None

    def save(self, step, tensors):
        self.wait()
        copy = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
        self.handle = self.start(self.write, step, copy)

    def wait(self):
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.result()
