# exercise: Checkpoint
# says: let Checkpoint.apply make the node


class Checkpoint:
    @staticmethod
    def apply(function, *inputs):
        return function(*inputs)
