from contextlib import ExitStack


def accumulate(ddp, microbatches, loss_of):
    """The losses as numbers; the block is entered anew for each microbatch but the last."""
    left, mean = len(microbatches), 0
    for batch in microbatches:
        left -= 1
        with ExitStack() as stack:
            if left > 0:
                stack.enter_context(ddp.no_sync())
            loss = loss_of(ddp, batch)
            (loss / len(microbatches)).backward()
        mean = mean + loss.detach().clone() / len(microbatches)
    return mean
