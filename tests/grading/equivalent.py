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
        "quantize_absmax",
        "(tiles / scale[:, :, None]).round().clamp(-m, m) -> (tiles / scale[:, :, None]).round()",
        "codes = (tiles / scale[:, :, None]).round().clamp(-m, m)",
    ): "no magnitude is above the largest, which is code m",
    (
        "llm_int8",
        "(regular / x_scale).round().clamp(-127, 127) -> (regular / x_scale).round()",
        "x_codes = (regular / x_scale).round().clamp(-127, 127).to(torch.int8)",
    ): "no magnitude is above the largest, which is code 127",
    (
        "llm_int8",
        "127 -> 128",
        "x_codes = (regular / x_scale).round().clamp(-127, 127).to(torch.int8)",
    ): "no magnitude is above the largest, which is code 127",
    (
        "llm_int8",
        "x_scale = x_scale.clamp(min=torch.finfo(x.dtype).tiny) -> pass",
        "x_scale = x_scale.clamp(min=torch.finfo(x.dtype).tiny)",
    ): "nan becomes code 0, whose scale is 0",
    (
        "llm_int8",
        "x_scale.clamp(min=torch.finfo(x.dtype).tiny) -> x_scale",
        "x_scale = x_scale.clamp(min=torch.finfo(x.dtype).tiny)",
    ): "nan becomes code 0, whose scale is 0",
    (
        "gptq",
        "h.double() -> h",
        "w, h, m = w.double(), h.double().clone(), 2 ** (bits - 1) - 1",
    ): "h is float64 already",
    (
        "gptq",
        "w[:, start:stop].clone() -> w[:, start:stop]",
        "part, errors = w[:, start:stop].clone(), torch.empty_like(w[:, start:stop])",
    ): "w is a copy in float64 by then, and these columns are not read again",
    (
        "gptq",
        "scales[-1][:, 0].double() -> scales[-1][:, 0]",
        "column, own = part[:, j - start], scales[-1][:, 0].double()",
    ): "float64 over float32 is float64",
    (
        "gptq",
        "1.0 -> 2.0",
        "diagonal[dead] = diagonal.sum() / (~dead).sum() if not dead.all() else 1.0",
    ): "twice the unit matrix corrects nothing either",
    (
        "awq",
        "dequantize(*quantize_absmax(w * s, bits, group), group) /... -> w - dequantize(*quantize_absmax(w * s, bits, group), grou...",
        "change = dequantize(*quantize_absmax(w * s, bits, group), group) / s - w",
    ): "the sign goes: the change is squared",
    (
        "awq",
        "s = s / (s.max() * s.min()).sqrt() -> s /= (s.max() * s.min()).sqrt()",
        "s = s / (s.max() * s.min()).sqrt()",
    ): "s is a tensor of its own by then",
    (
        "fake_quantize",
        "1.0 -> 2.0",
        "scale = torch.where(own > 0, own / form.largest, 1.0)[:, None, :, None]",
    ): "a tile of zeros stays one by any scale",
    (
        "verify",
        "1 -> 2",
        "q = torch.nn.functional.pad(q, (0, 0, 0, 1))  # nothing is taken off a bonus token's p",
    ): "no request looks at the place after the bonus token's",
    (
        "verify",
        "accepted.long() -> accepted",
        "kept = accepted.long().cumprod(dim=1).sum(dim=1)  # (B,): up to the first that is not",
    ): "a product of bools is int64",
    (
        "verify",
        "rest.sum -> rest.mean",
        "rest = torch.where(rest.sum(dim=1, keepdim=True) > 0, rest, own)",
    ): "the mean is above 0 where the sum is",
    (
        "verify",
        "rest.sum(dim=1, keepdim=True) -> rest.mean(dim=1, keepdim=True)",
        "rest = torch.where(rest.sum(dim=1, keepdim=True) > 0, rest, own)",
    ): "the mean is above 0 where the sum is",
    (
        "ngram_draft",
        "min(longest, len(tokens) - 1) -> longest",
        "for size in range(min(longest, len(tokens) - 1), 0, -1):",
    ): "for a size of all tokens and more there is no earlier start to look at",
    (
        "ngram_draft",
        "len(tokens) - 1 -> len(tokens)",
        "for size in range(min(longest, len(tokens) - 1), 0, -1):",
    ): "for a size of all tokens there is no earlier start to look at",
    (
        "medusa_loss",
        "total = total + decay ** k * loss -> total += decay ** k * loss",
        "total = total + decay**k * loss",
    ): "total is a tensor of its own, and nothing was saved of it",
    (
        "sample",
        "p = p * (p.cumsum(0) - p < request.top_p) -> p *= p.cumsum(0) - p < request.top_p",
        "p = p * (p.cumsum(0) - p < request.top_p)  # the likelier ones do not reach it yet",
    ): "p is of its own memory",
    (
        "sample",
        "p.cumsum(0) - p < request.top_p -> p.cumsum(0) - p <= request.top_p",
        "p = p * (p.cumsum(0) - p < request.top_p)  # the likelier ones do not reach it yet",
    ): "only where a sum is top_p to its last bit, which the rounding of softmax decides",
    (
        "BlockManager",
        "if block not in self.key_of: -> if True:",
        "if block not in self.key_of:",
    ): "the same keys; a twin of a block that was taken anew may be named late",
    (
        "QuantizedKV",
        "tuple[Tensor, Tensor] | None -> tuple[Tensor, Tensor] & None",
        "self.new: tuple[Tensor, Tensor] | None = None",
    ): "an annotation",
    (
        "QuantizedKV",
        "tuple[Tensor, Tensor] | None -> tuple[Tensor, Tensor]",
        "self.new: tuple[Tensor, Tensor] | None = None",
    ): "an annotation",
    (
        "suffix_array",
        "0 -> 1",
        "behind[: max(0, n - step)] = rank[step:] + 1",
    ): "two ranks are equal, so that step is below n",
    (
        "suffix_array",
        "max(0, n - step) -> n - step",
        "behind[: max(0, n - step)] = rank[step:] + 1",
    ): "two ranks are equal, so that step is below n",
    (
        "suffix_array",
        "1 -> 2",
        "behind[: max(0, n - step)] = rank[step:] + 1",
    ): "two ranks are equal, so that none is n - 1",
    (
        "suffix_array",
        "n + 1 -> n",
        "key = rank * (n + 1) + behind",
    ): "two ranks are equal, so that none is n - 1",
    (
        "suffix_array",
        "1 -> 2",
        "key = rank * (n + 1) + behind",
    ): "any factor above the largest rank + 1 keeps pairs apart",
    (
        "suffix_array",
        "np.argsort(key, kind='stable') -> np.argsort(key)",
        'order = np.argsort(key, kind="stable")',
    ): "equal keys get equal ranks, and in the last round there are none",
    (
        "suffix_array",
        "np.argsort(rank, kind='stable') -> np.argsort(rank)",
        'order, step = np.argsort(rank, kind="stable"), 1',
    ): "it is the result only where no two ranks are equal",
    (
        "Stream",
        "1 -> 2",
        "self.epoch, self.consumed = self.epoch + 1, 0",
    ): "which number an epoch has is free",
    (
        "mixture_weights",
        "f'g' -> f''",
        'raise ValueError(f"{budget:g} tokens are more than {most_passes:g} passes over all sources")',
    ): "the words of an error are free",
    (
        "mixture_weights",
        "f'{budget:g} tokens are more than {most_passes:g} passes ... -> f'{budget:g}{most_passes:g}'",
        'raise ValueError(f"{budget:g} tokens are more than {most_passes:g} passes over all sources")',
    ): "the words of an error are free",
    (
        "mixture_weights",
        "weights[i] * budget > most_passes * sizes[i] -> weights[i] * budget >= most_passes * sizes[i]",
        "over = {i for i in free if weights[i] * budget > most_passes * sizes[i]}",
    ): "a source exactly at its cap has that weight either way",
    (
        "minhash",
        "if len(filled): -> if True:",
        "if len(filled):",
    ): "reduceat over no places gives nothing",
    (
        "minhash",
        "signatures.T.copy() -> signatures.T",
        "return signatures.T.copy()",
    ): "in which order the numbers lie in memory is free",
    (
        "lay_out",
        "torch.ones(size, size).tril().bool() -> torch.ones(size, size).tril()",
        "mask[n, own, own] = torch.ones(size, size).tril().bool()",
    ): "they are written into a mask of bool",
    (
        "lay_out",
        "torch.zeros_like -> torch.empty_like",
        "positions, mask = torch.zeros_like(tokens), torch.zeros(len(rows), length, length).bool()",
    ): "every position is written",
    (
        "lay_out",
        "torch.zeros_like(tokens) -> torch.empty_like(tokens)",
        "positions, mask = torch.zeros_like(tokens), torch.zeros(len(rows), length, length).bool()",
    ): "every position is written",
    (
        "exchange",
        "expert.repeat_interleave(arriving.flatten()).argsort(stab... -> expert.repeat_interleave(arriving.flatten()).argsort()",
        "order = expert.repeat_interleave(arriving.flatten()).argsort(stable=True)",
    ): "the order of one expert's rows is free, and undone",
    (
        "route",
        "torch.promote_types(x.dtype, torch.float32) -> torch.promote_types(torch.float32, x.dtype)",
        "wide = torch.promote_types(x.dtype, torch.float32)",
    ): "the same type",
    (
        "mix",
        "weights.flatten()[order].unsqueeze(1).to(answers.dtype) -> weights.flatten()[order].unsqueeze(1)",
        "weighed = answers * weights.flatten()[order].unsqueeze(1).to(answers.dtype)",
    ): "x and weights are of one type",
    (
        "ErrorFeedback",
        "vector.clone() -> vector",
        "wanted = vector.clone() if residual is None else vector + residual",
    ): "`compress` returns a new tensor, and nothing else is written into",
    (
        "power_step",
        "'avg' -> 'sum'",
        'p = group.all_reduce(matrix @ q, op="avg")',
    ): "P is made orthonormal afterwards: a sum spans the same columns",
    (
        "power_step",
        "group.all_reduce(matrix @ q, op='avg') -> group.all_reduce(matrix @ q)",
        'p = group.all_reduce(matrix @ q, op="avg")',
    ): "P is made orthonormal afterwards: a sum spans the same columns",
    (
        "secure_sum",
        "vector.double() -> vector",
        "hidden = (vector.double() * 2**bits).round().to(torch.int32)",
    ): "multiplying by a power of two is exact in float32, too",
    (
        "secure_sum",
        "group.rank < other -> group.rank <= other",
        "hidden = hidden + mask if group.rank < other else hidden - mask",
    ): "a site shares no seed with itself",
    (
        "MyCompressor",
        "0.1175 -> 0.235",
        "left = torch.tensor([1.0, 0.3634, 0.1175, 0.0095])",
    ): "an open task: another plan, which is nearly as good",
    (
        "MyCompressor",
        "1.0 -> 2.0",
        "left = torch.tensor([1.0, 0.3634, 0.1175, 0.0095])",
    ): "an open task: another plan, which is nearly as good",
    (
        "MyCompressor",
        "0.0095 -> 0.019",
        "left = torch.tensor([1.0, 0.3634, 0.1175, 0.0095])",
    ): "an open task: another plan, which is nearly as good",
    (
        "MyCompressor",
        "8 -> 9",
        "costs = torch.tensor([9, 8, 16]).repeat(len(sizes))  # a scale with the first",
    ): "an open task: another plan, which is nearly as good",
    (
        "MyCompressor",
        "1.51 -> 3.02",
        "(0.4528, 1.51),",
    ): "an open task: other levels, which cost less than 15% of the mean error",
    (
        "MyCompressor",
        "int((plan == step).sum()) -> (plan == step).sum()",
        "number = int((plan == step).sum())",
    ): "a tensor of one integer counts as one",
    (
        "expected",
        "estimates - mean -> mean - estimates",
        "variance = (weights * (estimates - mean).square()).sum()",
    ): "a square is even",
    (
        "policy_loss",
        "advantages < 0 -> advantages <= 0",
        "loss = torch.where(advantages < 0, bounded, loss)",
    ): "at an advantage of 0 both are 0",
    (
        "gae",
        "torch.zeros_like(values) -> torch.empty_like(values)",
        "advantages = torch.zeros_like(values)",
    ): "every column is written",
    (
        "tilting_loss",
        "logp.sum -> logp.mean",
        "return -((judged - judged.mean()) * logp.sum(dim=1)).mean()",
    ): "any design counts, and Adam does not see a constant factor",
    (
        "tilting_loss",
        "logp.sum(dim=1) -> logp.mean(dim=1)",
        "return -((judged - judged.mean()) * logp.sum(dim=1)).mean()",
    ): "any design counts, and Adam does not see a constant factor",
    (
        "tilting_loss",
        "((judged - judged.mean()) * logp.sum(dim=1)).mean() -> ((judged - judged.mean()) * logp.sum(dim=1)).sum()",
        "return -((judged - judged.mean()) * logp.sum(dim=1)).mean()",
    ): "any design counts, and Adam does not see a constant factor",
    (
        "tilting_loss",
        "((judged - judged.mean()) * logp.sum(dim=1)).mean -> ((judged - judged.mean()) * logp.sum(dim=1)).sum",
        "return -((judged - judged.mean()) * logp.sum(dim=1)).mean()",
    ): "any design counts, and Adam does not see a constant factor",
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
