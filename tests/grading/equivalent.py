"""Mutants that rightly keep full points: (exercise, change, line) and why.

Each was read: it computes the same and does the same work, or differs only where no sentence of the
exercise says what must hold.
"""

EQUIVALENT = {
    (
        "warmup_cosine",
        "step >= total -> step > total",
        "if step >= total:",
    ): "at step == total half a cosine is at the floor already",
    (
        "Checkpoint",
        "torch.random.fork_rng(devices=[]) -> torch.random.fork_rng()",
        "with torch.random.fork_rng(devices=[]), torch.enable_grad():",
    ): "the default forks the generators of GPUs too, of which the sandbox has none",
    (
        "quantize_blocks",
        "True -> False",
        "codes = torch.bucketize(fractions, borders, out_int32=True)",
    ): "the places become uint8 either way, after eight bytes each in place of four",
    (
        "pack",
        "codes.flatten() -> codes",
        "codes = codes.flatten()",
    ): "the docstring gives n codes, which are flat",
    (
        "ngram_draft",
        "list(tokens[after:after + most]) -> tokens[after:after + most]",
        "return list(tokens[after : after + most])",
    ): "a slice of the list that comes in is a list of its own",
    (
        "ngram_draft",
        "len(tokens) - 1 -> len(tokens) + 1",
        "for size in range(min(longest, len(tokens) - 1), 0, -1):",
    ): "for a size of all tokens there is no earlier start to look at",
    (
        "candidate_pairs",
        "sorted(pairs) -> pairs",
        "return sorted(pairs)",
    ): "no order is asked for, and the check reads a set too",
    (
        "reshard",
        "start < stop -> start <= stop",
        "if start < stop:",
    ): "it reads an empty piece more, and puts nothing in its place",
    (
        "best_interval",
        "3600 -> 3601",
        "between = chip_hours * 3600 / failures / chips",
    ): "0.014 % of the interval, where the check allows 0.5 %",
    (
        "vocabulary_loss",
        "-1 -> 1",
        "width = logits.shape[-1]",
    ): "the last of two dimensions is dimension 1",
    (
        "route",
        "-1 -> 1",
        "p = (x.to(wide) @ weight.to(wide).T).softmax(dim=-1)  # (M, E)",
    ): "the last of two dimensions is dimension 1",
    (
        "route",
        "p.detach() -> p",
        "experts = (p.detach() + bias).topk(k).indices  # (M, K)",
    ): "no gradient flows from indices",
    (
        "exchange",
        "True -> False",
        "order = expert.repeat_interleave(arriving.flatten()).argsort(stable=True)",
    ): "within an expert the rows may come in any order: the same order takes the answers back",
    (
        "ulysses",
        "1 -> 2",
        'raise ValueError(f"{q.shape[1]} heads cannot be shared by {size} ranks")',
    ): "another number in the words of an error, which are free",
    (
        "clip_on_mesh",
        "factor < 1 -> factor <= 1",
        "if factor < 1:",
    ): "a factor of 1 changes nothing",
    (
        "bytes_between",
        "line.index(rank) + 1 -> line.index(rank) - 1",
        "after = line[(line.index(rank) + 1) % len(line)]",
    ): "the same edges of the ring, each from its other end",
    (
        "optimal_plan",
        "f'no plan fits {budget_bytes} bytes: give more' -> f'{budget_bytes}'",
        'raise ValueError(f"no plan fits {budget_bytes} bytes: give more")',
    ): "the words of an error are free",
    (
        "optimal_plan",
        "0 -> 1",
        "best = [[(0, 0, [])], *([] for _ in layers)]",
    ): "every partial plan costs one more, and their order stays",
    (
        "tiled_forward",
        "torch.empty_like(q[..., 0]) -> torch.zeros_like(q[..., 0])",
        "out, lse = torch.empty_like(q), torch.empty_like(q[..., 0])",
    ): "every element is written before it is read",
    (
        "tiled_forward",
        "torch.empty_like -> torch.zeros_like",
        "out, lse = torch.empty_like(q), torch.empty_like(q[..., 0])",
    ): "every element is written before it is read",
    (
        "tiled_forward",
        "torch.empty_like(q) -> torch.zeros_like(q)",
        "out, lse = torch.empty_like(q), torch.empty_like(q[..., 0])",
    ): "every element is written before it is read",
    (
        "Zero1",
        "torch.empty_like(unit.shard) -> torch.zeros_like(unit.shard)",
        "unit.shard.grad = torch.empty_like(unit.shard)  # (S/N,)",
    ): "every element is written before it is read",
    (
        "Zero1",
        "torch.empty_like -> torch.zeros_like",
        "unit.shard.grad = torch.empty_like(unit.shard)  # (S/N,)",
    ): "every element is written before it is read",
    (
        "reduce_unit",
        "torch.empty_like(unit.shard.data) -> torch.zeros_like(unit.shard.data)",
        "part = torch.empty_like(unit.shard.data)  # (S/N,)",
    ): "every element is written before it is read",
    (
        "reduce_unit",
        "torch.empty_like -> torch.zeros_like",
        "part = torch.empty_like(unit.shard.data)  # (S/N,)",
    ): "every element is written before it is read",
    (
        "Zero3",
        "units[:-1] -> units[:]",
        "self.before = dict(zip(map(id, units), [None, *units[:-1]]))",
    ): "zip stops at the last unit",
    (
        "Zero3",
        "unit.start_gather() -> pass",
        "unit.start_gather()",
    ): "gather() begins it, right after the neighbour's",
}
