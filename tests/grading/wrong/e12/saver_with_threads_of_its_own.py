# exercise: AsyncSaver
# says: `start` is given for that | `start(function, *arguments)` is given for that

import threading


class AsyncSaver:
    def __init__(self, start, write):
        self.write, self.thread = write, None

    def save(self, step, tensors):
        self.wait()
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self.thread = threading.Thread(target=self.write, args=(step, copies))
        self.thread.start()

    def wait(self):
        if self.thread is not None:
            self.thread.join()
