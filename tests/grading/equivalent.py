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
        "warmup_cosine",
        "step - warmup -> warmup - step",
        "t = (step - warmup) / (total - warmup)",
    ): "the cosine is even",
    (
        "warmup_cosine",
        "total - warmup -> warmup - total",
        "t = (step - warmup) / (total - warmup)",
    ): "the cosine is even",
    (
        "grouped_query_attention",
        "-2 -> 2",
        "times, (T, C) = q.shape[1] // k.shape[1], q.shape[-2:]",
    ): "the last two of four dimensions begin at 2",
    (
        "grouped_query_attention",
        "-2 -> 2",
        "scores = q @ k.transpose(-2, -1) / C**0.5  # (B, H, T, T)",
    ): "the second-last of four dimensions is dimension 2",
    (
        "grouped_query_attention",
        "torch.ones(T, T, dtype=torch.bool, device=q.device) -> torch.ones(T, T, dtype=torch.bool)",
        "future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)",
    ): "the checks run on the CPU, where the mask is anyway",
    (
        "all_reduce_gradients",
        "for parameter in model.parameters(): -> pass",
        "for parameter in model.parameters():",
    ): "that is the stub, which counts as not attempted",
    (
        "all_reduce_gradients_bucketed",
        "p.nbytes > room or not buckets -> p.nbytes > room",
        "if p.nbytes > room or not buckets:",
    ): "the first parameter never fits into the room of 0 bytes, unless it has no element",
    (
        "all_reduce_gradients_bucketed",
        "0 -> 1",
        "buckets, room = [], 0",
    ): "the first parameter opens a bucket: none has a single byte",
    (
        "accumulate",
        "total = total + loss.detach() -> total += loss.detach()",
        "total = total + loss.detach()",
    ): "0.0 + the first loss is a tensor of its own, into which the others are added",
    (
        "tree_broadcast",
        "distance < group.size -> distance <= group.size",
        "while distance < group.size:",
    ): "a round of distance N sends nothing",
    (
        "ring_reduce_scatter",
        "(group.rank - 2 - step) % group.size -> group.rank - 2 - step",
        "own = chunks[(group.rank - 2 - step) % group.size]",
    ): "Python counts a negative index from the end, as modulo size does",
    (
        "ring_all_gather",
        "(group.rank - step) % group.size -> group.rank - step",
        "have = places[(group.rank - step) % group.size]",
    ): "Python counts a negative index from the end, as modulo size does",
    (
        "ring_all_gather",
        "(group.rank - step - 1) % group.size -> group.rank - step - 1",
        "need = places[(group.rank - step - 1) % group.size]",
    ): "Python counts a negative index from the end, as modulo size does",
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
        "newest_whole",
        "len(checksum) == 4 and zlib.crc32(data).to_bytes(4, 'litt... -> zlib.crc32(data).to_bytes(4, 'little') == checksum",
        'if len(checksum) == 4 and zlib.crc32(data).to_bytes(4, "little") == checksum:',
    ): "four bytes never equal fewer",
    (
        "slow_ranks",
        "compute - middle -> middle - compute",
        "deviation = 1.4826 * (compute - middle).abs().median()",
    ): "the sign goes",
    (
        "SpikeRule",
        "self.skipped + 1 -> self.skipped - 1",
        "self.skipped = (self.skipped + 1) % self.patience",
    ): "it counts down from `patience`",
    (
        "merge",
        "0 -> 1",
        "base = both.masked_fill(both == -torch.inf, 0)",
    ): "exp(-inf - 1) is 0, too",
    (
        "split_layers",
        "(stages - more) // 2 -> (stages - more) / 2",
        "first = (stages - more) // 2",
    ): "the other of two stages in the middle, which is free",
    (
        "zigzag",
        "f'{length} tokens are not {2 * size} equal chunks' -> f'{length}{2 * size}'",
        'raise ValueError(f"{length} tokens are not {2 * size} equal chunks")',
    ): "the words of an error are free",
    (
        "zigzag",
        "2 * size -> 2 / size",
        'raise ValueError(f"{length} tokens are not {2 * size} equal chunks")',
    ): "the words of an error are free",
    (
        "zigzag",
        "2 * size -> 2",
        'raise ValueError(f"{length} tokens are not {2 * size} equal chunks")',
    ): "the words of an error are free",
    (
        "zigzag",
        "2 * size -> size",
        'raise ValueError(f"{length} tokens are not {2 * size} equal chunks")',
    ): "the words of an error are free",
    (
        "zigzag",
        "2 -> 3",
        'raise ValueError(f"{length} tokens are not {2 * size} equal chunks")',
    ): "the words of an error are free",
    (
        "run_operations",
        "out.detach() -> out",
        "loss = loss + out.detach()",
    ): "the loss keeps a graph whose saved tensors backward has freed, and no sentence forbids it",
    (
        "ring_backward",
        "d_block = d_block + coming() -> d_block += coming()",
        "d_block = d_block + coming()",
    ): "what `gradients` gives may be written into",
    (
        "ring_backward",
        "dq = dq + dq_part -> dq += dq_part",
        "dq = dq + dq_part",
    ): "what `gradients` gives may be written into",
    (
        "ulysses",
        "f'{q.shape[1]} heads cannot be shared by {size} ranks' -> f'{q.shape[1]}{size}'",
        'raise ValueError(f"{q.shape[1]} heads cannot be shared by {size} ranks")',
    ): "the words of an error are free",
    (
        "best_interval",
        "save_seconds >= 2 * between -> save_seconds > 2 * between",
        "if save_seconds >= 2 * between:",
    ): "no save takes twice that time to the last bit",
    (
        "best_interval",
        "9 -> 10",
        "return math.sqrt(2 * save_seconds * between) * (1 + x / 3 + x**2 / 9) - save_seconds",
    ): "0.2 % of the interval, where the check allows 0.5 %",
    (
        "best_interval",
        "3600 -> 3601",
        "between = chip_hours * 3600 / failures / chips",
    ): "0.014 % of the interval, where the check allows 0.5 %",
    (
        "conjugates",
        "@staticmethod -> def forward(ctx, x):",
        "def forward(ctx, x):",
    ): "torch takes it from the class, where a function has no self either",
    (
        "conjugates",
        "@staticmethod -> def backward(ctx, dy):",
        "def backward(ctx, dy):",
    ): "torch takes it from the class, where a function has no self either",
    (
        "vocabulary_loss",
        "-1 -> 1",
        "top = tp.max(logits.amax(dim=-1))  # (n,)",
    ): "the last of two dimensions is dimension 1",
    (
        "vocabulary_loss",
        "-1 -> 1",
        "total = tp.reduce((logits - top[:, None]).exp().sum(dim=-1))  # (n,)",
    ): "the last of two dimensions is dimension 1",
    (
        "vocabulary_loss",
        "-1 -> 1",
        "mine = logits.gather(-1, places.masked_fill(elsewhere, 0)[:, None])[:, 0]",
    ): "the last of two dimensions is dimension 1",
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
        "merged_linear",
        "weight.float() -> weight",
        "linear.weight.data = (weight.float() + delta).to(weight.dtype)",
    ): "a sum with the float32 delta is made in float32 either way",
    (
        "merged_linear",
        "torch.nn.Linear(ins, outs, bias=bias is not None, dtype=w... -> torch.nn.Linear(ins, outs, bias=bias is not None)",
        "linear = torch.nn.Linear(ins, outs, bias=bias is not None, dtype=weight.dtype)",
    ): "weight and bias are replaced, and have their own dtype",
    (
        "merged_linear",
        "bias.detach().clone() -> bias.detach()",
        "linear.bias.data = bias.detach().clone()",
    ): "nothing says that the bias lies in memory of its own",
    (
        "merged_linear",
        "bias.detach() -> bias",
        "linear.bias.data = bias.detach().clone()",
    ): "`data` takes no graph",
    (
        "DoRA",
        "with torch.no_grad(): -> if True:",
        "with torch.no_grad():",
    ): "delta() and dense_weight give what has no gradient",
    (
        "Prefix",
        "self.mlp(self.vectors).detach() -> self.mlp(self.vectors)",
        "self.table = torch.nn.Parameter(self.mlp(self.vectors).detach())",
    ): "a Parameter is a leaf either way",
    (
        "Prefix",
        "return (keys.transpose(0, 1), values.transpose(0, 1)) -> return (values.transpose(0, 1), keys.transpose(0, 1))",
        "return keys.transpose(0, 1), values.transpose(0, 1)",
    ): "which numbers of its own MLP are the keys is free",
    (
        "normal_levels",
        "torch.linspace(outermost, 0.5, shares // 2 + 1, dtype=tor... -> torch.linspace(outermost, 0.5, shares // 2 + 1)",
        "above = torch.linspace(outermost, 0.5, shares // 2 + 1, dtype=torch.float64)[:-1]",
    ): "float32 says the levels as finely as the check reads them",
    (
        "normal_levels",
        "torch.float64 -> torch.float32",
        "above = torch.linspace(outermost, 0.5, shares // 2 + 1, dtype=torch.float64)[:-1]",
    ): "float32 says the levels as finely as the check reads them",
    (
        "normal_levels",
        "torch.linspace(outermost, 0.5, shares // 2, dtype=torch.f... -> torch.linspace(outermost, 0.5, shares // 2)",
        "below = torch.linspace(outermost, 0.5, shares // 2, dtype=torch.float64)[:-1]",
    ): "float32 says the levels as finely as the check reads them",
    (
        "normal_levels",
        "torch.float64 -> torch.float32",
        "below = torch.linspace(outermost, 0.5, shares // 2, dtype=torch.float64)[:-1]",
    ): "float32 says the levels as finely as the check reads them",
    (
        "quantize_blocks",
        "torch.bucketize(fractions, borders, out_int32=True) -> torch.bucketize(fractions, borders)",
        "codes = torch.bucketize(fractions, borders, out_int32=True)",
    ): "the places become uint8 either way, after eight bytes each in place of four",
    (
        "pack",
        "codes = codes.flatten() -> pass",
        "codes = codes.flatten()",
    ): "the docstring gives n codes, which are flat",
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
        "Zero3",
        "units[:-1] -> units[:]",
        "self.before = dict(zip(map(id, units), [None, *units[:-1]]))",
    ): "zip stops at the last unit",
    (
        "Zero3",
        "unit.start_gather() -> pass",
        "unit.start_gather()",
    ): "gather() begins it, right after the neighbour's",
    (
        "latent_attention_absorbed",
        "scores = scores / (q.shape[-1] + q_rotated.shape[-1]) ** 0.5 -> scores /= (q.shape[-1] + q_rotated.shape[-1]) ** 0.5",
        "scores = scores / (q.shape[-1] + q_rotated.shape[-1]) ** 0.5",
    ): "the scores are its own",
    (
        "newton_schulz",
        "c * gram @ gram -> gram @ (c * gram)",
        "x = a * x + (b * gram + c * gram @ gram) @ x",
    ): "a number may stand anywhere in a product",
}
