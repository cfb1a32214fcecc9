# exercise: AsyncSaver
# says: was raised twice
# the handle is forgotten only after result(), so a failed one is kept and raises at each later
# call


class AsyncSaver:
    def __init__(self, start, write):
        self.start, self.write, self.handle = start, write, None

    def save(self, step, tensors):
        self.wait()
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self.handle = self.start(self.write, step, copies)

    def wait(self):
        if self.handle is not None:
            self.handle.result()
            self.handle = None
