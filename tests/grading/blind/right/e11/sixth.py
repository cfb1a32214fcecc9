# a reader's own answers, from the notebook alone
import math

import numpy as np
import torch


def quality(text: str) -> str:
    stop_words = {"the", "be", "to", "of", "and", "that", "have", "with"}
    words = text.split()
    if len(words) < 50:
        return "too_few_words"
    if not 3 <= sum(map(len, words)) / len(words) <= 10:
        return "unusual_word_length"
    ellipses = text.count("...") + text.count("…")
    if ellipses / len(words) > 0.1:
        return "too_many_ellipses"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    bullets = sum(line.startswith(("•", "-", "*")) for line in lines)
    if bullets / len(lines) > 0.9:
        return "mostly_bullets"
    broken = sum(line.endswith(("...", "…")) for line in lines)
    if broken / len(lines) > 0.3:
        return "lines_break_off"
    lettered = sum(any(sign.isalpha() for sign in word) for word in words)
    if lettered / len(words) < 0.8:
        return "words_without_letters"
    if len(stop_words & set(text.lower().split())) < 2:
        return "no_stop_words"
    return ""


def minhash(hashes, bounds, a, b):
    signatures = np.full((len(bounds) - 1, len(a)), 2**32 - 1, dtype=np.uint32)
    filled = np.flatnonzero(np.diff(bounds))
    if len(filled) == 0:
        return signatures
    own = hashes[: bounds[-1]]
    starts = bounds[filled]
    for k in range(len(a)):
        values = own * a[k] + b[k]
        signatures[filled, k] = np.minimum.reduceat(values, starts)
    return signatures


def candidate_pairs(signatures, bands: int, rows: int) -> list:
    filled = np.flatnonzero((signatures != 2**32 - 1).any(axis=1)).tolist()
    pairs = set()
    for band in range(bands):
        places = signatures[:, band * rows : (band + 1) * rows]
        first = {}
        for j in filled:
            i = first.setdefault(places[j].tobytes(), j)
            if i != j:
                pairs.add((i, j))
    return sorted(pairs)


def clusters(pairs, count: int) -> list:
    parent = list(range(count))

    def root(page):
        while parent[page] != page:
            parent[page] = parent[parent[page]]
            page = parent[page]
        return page

    for i, j in pairs:
        low, high = sorted((root(int(i)), root(int(j))))
        parent[high] = low
    return [root(page) for page in range(count)]


def suffix_array(symbols):
    n = len(symbols)
    if n == 0:
        return np.zeros(0, dtype=np.int64)
    rank = np.unique(symbols, return_inverse=True)[1].astype(np.int64)
    for power in range(max(1, (n - 1).bit_length())):
        step = 2**power
        behind = np.zeros(n, dtype=np.int64)
        behind[: n - step] = rank[step:] + 1
        key = rank * (n + 1) + behind
        order = np.argsort(key, kind="stable")
        ranked = key[order]
        rank[order] = np.concatenate(([0], np.cumsum(ranked[1:] != ranked[:-1])))
        if rank[order[-1]] == n - 1:
            break
    return order.astype(np.int64)


def mixture_weights(sizes, temperature, budget, most_passes=4.0) -> list:
    sizes = [float(n) for n in sizes]
    if budget > most_passes * sum(sizes) or sum(sizes) <= 0:
        raise ValueError(
            f"{budget} tokens cannot be read in at most {most_passes} passes "
            f"of sources with {sum(sizes):.0f} tokens together"
        )
    shares, left = [0.0] * len(sizes), 1.0
    free = {i for i, n in enumerate(sizes) if n > 0}
    while free:
        largest = max(sizes[i] for i in free)
        pulls = {i: (sizes[i] / largest) ** (1 / temperature) for i in free}
        total = math.fsum(pulls.values())
        for i in free:
            shares[i] = left * pulls[i] / total
        above = {i for i in free if shares[i] * budget > most_passes * sizes[i]}
        if not above:
            break
        for i in above:
            shares[i] = most_passes * sizes[i] / budget
        free -= above
        fixed = math.fsum(s for i, s in enumerate(shares) if i not in free)
        left = max(0.0, 1.0 - fixed)
    return shares


def lay_out(rows, length: int, end: int):
    tokens = torch.full((len(rows), length), end, dtype=torch.int64)
    targets = torch.full((len(rows), length), -100, dtype=torch.int64)
    positions = torch.zeros((len(rows), length), dtype=torch.int64)
    mask = torch.zeros((len(rows), length, length), dtype=torch.bool)
    triangle = torch.ones((length, length), dtype=torch.bool).tril()
    for n, documents in enumerate(rows):
        at = 0
        for document in documents:
            size = len(document) + 1
            to = at + size
            tokens[n, at:to] = torch.tensor([end, *document])
            targets[n, at:to] = torch.tensor([*document, end])
            positions[n, at:to] = torch.arange(size)
            mask[n, at:to, at:to] = triangle[:size, :size]
            at = to
        mask[n, at:, at:] = triangle[: length - at, : length - at]
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
        generator = np.random.default_rng([self.seed, self.epoch])
        order = generator.permutation(self.rows)
        whole = self.batch * self.ranks
        for at in range(self.consumed, self.rows, whole):
            step = order[at : at + whole]
            self.consumed = at + len(step)
            yield step[self.rank :: self.ranks].tolist()
        self.epoch, self.consumed = self.epoch + 1, 0

    def state(self) -> dict:
        return {"epoch": self.epoch, "consumed": self.consumed}

    def resume(self, state: dict) -> None:
        self.epoch, self.consumed = state["epoch"], state["consumed"]
