# a reader's own answers, from the notebook alone
import numpy as np
import torch

STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}


def quality(text: str) -> str:
    words = text.split()
    count = len(words)
    if count < 50:
        return "too_few_words"
    mean = sum(map(len, words)) / count
    if mean < 3 or mean > 10:
        return "unusual_word_length"
    if (text.count("...") + text.count("…")) / count > 0.1:
        return "too_many_ellipses"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    bullets = sum(line.startswith(("•", "-", "*")) for line in lines)
    if bullets / len(lines) > 0.9:
        return "mostly_bullets"
    broken = sum(line.endswith(("...", "…")) for line in lines)
    if broken / len(lines) > 0.3:
        return "lines_break_off"
    lettered = sum(any(sign.isalpha() for sign in word) for word in words)
    if lettered / count < 0.8:
        return "words_without_letters"
    if len(STOP_WORDS & {word.lower() for word in words}) < 2:
        return "no_stop_words"
    return ""


def minhash(hashes, bounds, a, b):
    pages, functions = len(bounds) - 1, len(a)
    signatures = np.full((pages, functions), 2**32 - 1, dtype=np.uint32)
    filled = np.flatnonzero(np.diff(bounds))
    if len(filled) == 0:
        return signatures
    starts = bounds[filled]
    own = hashes[: bounds[-1]]
    for k in range(functions):
        signatures[filled, k] = np.minimum.reduceat(own * a[k] + b[k], starts)
    return signatures


def candidate_pairs(signatures, bands: int, rows: int) -> list:
    nothing = (signatures == 2**32 - 1).all(axis=1)
    pairs = set()
    for band in range(bands):
        first = {}
        values = signatures[:, band * rows : (band + 1) * rows]
        for page, own in enumerate(values):
            if nothing[page]:
                continue
            key = own.tobytes()
            if key in first:
                pairs.add((first[key], page))
            else:
                first[key] = page
    return list(pairs)


def clusters(pairs, count: int) -> list:
    parent = list(range(count))

    def root(page):
        while parent[page] != page:
            parent[page] = parent[parent[page]]
            page = parent[page]
        return page

    for i, j in pairs:
        one, other = root(i), root(j)
        if one < other:
            parent[other] = one
        elif other < one:
            parent[one] = other
    return [root(page) for page in range(count)]


def suffix_array(symbols):
    n = len(symbols)
    if n == 0:
        return np.zeros(0, dtype=np.int64)
    rank = np.unique(symbols, return_inverse=True)[1].reshape(-1).astype(np.int64)
    step = 1
    while rank.max() < n - 1:
        behind = np.zeros(n, dtype=np.int64)
        behind[: n - step] = rank[step:] + 1
        key = rank * (n + 1) + behind
        order = np.argsort(key, kind="stable")
        ranked = key[order]
        rank = np.empty(n, dtype=np.int64)
        rank[order] = np.concatenate(([0], np.cumsum(ranked[1:] != ranked[:-1])))
        step *= 2
    return np.argsort(rank, kind="stable").astype(np.int64)


def mixture_weights(sizes, temperature, budget, most_passes=4.0) -> list:
    if budget > most_passes * sum(sizes):
        raise ValueError(
            f"{budget} tokens cannot be read from {sum(sizes)} in {most_passes} passes"
        )
    shares = [0.0] * len(sizes)
    free = set(range(len(sizes)))
    left = 1.0
    while free:
        top = max(sizes[i] for i in free) or 1
        powers = {i: (sizes[i] / top) ** (1 / temperature) for i in free}
        whole = sum(powers.values()) or 1.0
        for i in free:
            shares[i] = left * powers[i] / whole
        above = {i for i in free if shares[i] * budget > most_passes * sizes[i]}
        if not above:
            break
        for i in above:
            shares[i] = most_passes * sizes[i] / budget
        free -= above
        left = max(0.0, 1 - sum(shares[i] for i in range(len(sizes)) if i not in free))
    return shares


def lay_out(rows, length: int, end: int):
    count = len(rows)
    tokens = torch.full((count, length), end, dtype=torch.int64)
    targets = torch.full((count, length), -100, dtype=torch.int64)
    positions = torch.zeros(count, length, dtype=torch.int64)
    mask = torch.zeros(count, length, length, dtype=torch.bool)
    for n, documents in enumerate(rows):
        at = 0
        for document in documents:
            size = len(document) + 1
            to = at + size
            tokens[n, at:to] = torch.tensor([end, *document])
            targets[n, at:to] = torch.tensor([*document, end])
            positions[n, at:to] = torch.arange(size)
            mask[n, at:to, at:to] = torch.ones(size, size, dtype=torch.bool).tril()
            at = to
        rest = length - at
        positions[n, at:] = torch.arange(rest)
        mask[n, at:, at:] = torch.ones(rest, rest, dtype=torch.bool).tril()
    return tokens, targets, positions, mask


class Stream:
    def __init__(self, rows, batch, rank=0, ranks=1, seed=0):
        self.rows, self.batch, self.rank, self.ranks, self.seed = (
            rows,
            batch,
            rank,
            ranks,
            seed,
        )
        self.epoch = self.consumed = 0

    def __iter__(self):
        draw = np.random.default_rng([self.seed, self.epoch])
        order = draw.permutation(self.rows)
        while self.consumed < self.rows:
            step = order[self.consumed : self.consumed + self.batch * self.ranks]
            mine = step[self.rank :: self.ranks].tolist()
            self.consumed += len(step)
            yield mine
        self.epoch += 1
        self.consumed = 0

    def state(self) -> dict:
        return {"epoch": self.epoch, "consumed": self.consumed}

    def resume(self, state: dict) -> None:
        self.epoch = state["epoch"]
        self.consumed = state["consumed"]
