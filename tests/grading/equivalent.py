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
        "merged_linear",
        "weight.float() -> weight",
        "linear.weight.data = (weight.float() + delta).to(weight.dtype)",
    ): "a sum with the float32 delta is made in float32 either way",
    (
        "merged_linear",
        "torch.nn.Linear(ins, outs, bias=bias is not None, dtype=w... -> "
        "torch.nn.Linear(ins, outs, bias=bias is not None)",
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
        "return (keys.transpose(0, 1), values.transpose(0, 1)) -> "
        "return (values.transpose(0, 1), keys.transpose(0, 1))",
        "return keys.transpose(0, 1), values.transpose(0, 1)",
    ): "which numbers of its own MLP are the keys is free",
    (
        "normal_levels",
        "torch.linspace(outermost, 0.5, shares // 2 + 1, dtype=tor... -> "
        "torch.linspace(outermost, 0.5, shares // 2 + 1)",
        "above = torch.linspace(outermost, 0.5, shares // 2 + 1, dtype=torch.float64)[:-1]",
    ): "float32 says the levels as finely as the check reads them",
    (
        "normal_levels",
        "torch.float64 -> torch.float32",
        "above = torch.linspace(outermost, 0.5, shares // 2 + 1, dtype=torch.float64)[:-1]",
    ): "float32 says the levels as finely as the check reads them",
    (
        "normal_levels",
        "torch.linspace(outermost, 0.5, shares // 2, dtype=torch.f... -> "
        "torch.linspace(outermost, 0.5, shares // 2)",
        "below = torch.linspace(outermost, 0.5, shares // 2, dtype=torch.float64)[:-1]",
    ): "float32 says the levels as finely as the check reads them",
    (
        "normal_levels",
        "torch.float64 -> torch.float32",
        "below = torch.linspace(outermost, 0.5, shares // 2, dtype=torch.float64)[:-1]",
    ): "float32 says the levels as finely as the check reads them",
    (
        "quantize_blocks",
        "torch.bucketize(fractions, borders, out_int32=True) -> "
        "torch.bucketize(fractions, borders)",
        "codes = torch.bucketize(fractions, borders, out_int32=True)",
    ): "the places become uint8 either way, after eight bytes each in place of four",
    (
        "pack",
        "codes = codes.flatten() -> pass",
        "codes = codes.flatten()",
    ): "the docstring gives n codes, which are flat",
}
