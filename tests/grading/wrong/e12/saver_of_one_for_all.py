# exercise: AsyncSaver
# says: was written with | expected ['half' | were written

# a buffer that begins with the first save's names and never loses one


class AsyncSaver:
    def __init__(self, start, write):
        self.start, self.write, self.handle, self.room = start, write, None, {}

    def save(self, step, tensors):
        self.wait()
        for name, tensor in list(tensors.items())[:-1]:
            self.room[name] = tensor.detach().clone()
        self.handle = self.start(self.write, step, self.room)

    def wait(self):
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.result()
