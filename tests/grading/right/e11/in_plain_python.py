# other ways: regular expressions, a set of tuples, ranks by size, Python's own sort

import random
import re
from collections import defaultdict
from math import exp, inf, log

import numpy as np
import torch

STOP_WORDS = "the be to of and that have with".split()


def quality(text):
    words = re.findall(r"\S+", text)
    n = len(words)
    if n < 50:
        return "too_few_words"
    mean = len("".join(words)) / n
    if mean < 3 or mean > 10:
        return "unusual_word_length"
    if 10 * len(re.findall(r"\.\.\.|…", text)) > n:
        return "too_many_ellipses"
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if 10 * sum(line[0] in "•-*" for line in lines) > 9 * len(lines):
        return "mostly_bullets"
    if 10 * sum(bool(re.search(r"(\.\.\.|…)$", line)) for line in lines) > 3 * len(lines):
        return "lines_break_off"
    if 5 * sum(bool(re.search(r"[^\W\d_]", word)) for word in words) < 4 * n:
        return "words_without_letters"
    lower = [word.lower() for word in words]
    return "" if sum(word in lower for word in STOP_WORDS) >= 2 else "no_stop_words"


def minhash(hashes, bounds, a, b):
    rows = []
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
        own = hashes[start:stop].astype(np.uint64)
        if len(own) == 0:
            rows.append(np.full(len(a), 0xFFFFFFFF))
            continue
        values = (own[:, None] * a.astype(np.uint64) + b) & np.uint64(0xFFFFFFFF)
        rows.append(values.min(axis=0))
    return np.array(rows).astype(np.uint32)


def candidate_pairs(signatures, bands, rows):
    buckets = defaultdict(list)
    for page, signature in enumerate(signatures.tolist()):
        if min(signature) == 2**32 - 1:
            continue
        for band in range(bands):
            buckets[band, tuple(signature[band * rows :][:rows])].append(page)
    heaps = (pages for pages in buckets.values() if len(pages) > 1)
    return list({(pages[0], other) for pages in heaps for other in pages[1:]})


def clusters(pairs, count):
    groups = [[page] for page in range(count)]
    group_of = list(range(count))
    for i, j in pairs:
        one, other = group_of[i], group_of[j]
        if one == other:
            continue
        if len(groups[one]) < len(groups[other]):
            one, other = other, one
        for page in groups[other]:
            group_of[page] = one
        groups[one] += groups[other]
        groups[other] = []
    lowest = [min(group, default=-1) for group in groups]
    return [lowest[group] for group in group_of]


def suffix_array(symbols):
    rank = symbols.tolist()
    n, step = len(rank), 1
    order = list(range(n))
    while True:

        def key(i):
            return rank[i], rank[i + step] if i + step < n else -1

        order.sort(key=key)
        fresh = [0] * n
        for before, now in zip(order, order[1:]):
            fresh[now] = fresh[before] + (key(now) != key(before))
        rank, step = fresh, 2 * step
        if not n or max(rank) == n - 1:
            return np.array(order, dtype=np.int64)


def mixture_weights(sizes, temperature, budget, most_passes=4.0):
    caps = [most_passes * size / budget for size in sizes]
    if sum(caps) < 1 - 1e-12:
        raise ValueError("more tokens than the sources have in so many passes")
    logs = [log(size / max(sizes)) / temperature for size in sizes]
    # who reaches its cap first stands first: fill the level of water from there
    order = sorted(range(len(sizes)), key=lambda i: log(caps[i]) - logs[i])
    weights, left = [0.0] * len(sizes), 1.0
    for place, i in enumerate(order):
        top = max(logs[j] for j in order[place:])
        rest = sum(exp(logs[j] - top) for j in order[place:])
        weights[i] = min(caps[i], left * exp(logs[i] - top) / rest)
        left -= weights[i]
    return weights


def lay_out(rows, length, end):
    tokens, targets, positions, owners = [], [], [], []
    for row in rows:
        read, asked, place, owner = [], [], [], []
        for number, document in enumerate(row):
            read += [end, *document]
            asked += [*document, end]
            place += range(len(document) + 1)
            owner += [number] * (len(document) + 1)
        padding = length - len(read)
        tokens.append(read + [end] * padding)
        targets.append(asked + [-100] * padding)
        positions.append(place + [0] * padding)
        owners.append(owner + [-1] * padding)
    owners = torch.tensor(owners)
    same = owners.unsqueeze(1) == owners.unsqueeze(2)
    mask = torch.tril(same)
    return torch.tensor(tokens), torch.tensor(targets), torch.tensor(positions), mask


class Stream:
    def __init__(self, rows, batch, rank=0, ranks=1, seed=0):
        self.rows, self.size, self.rank, self.ranks, self.seed = (
            rows,
            batch * ranks,
            rank,
            ranks,
            seed,
        )
        self.given = 0  # over all epochs

    def __iter__(self):
        epoch = self.given // self.rows
        order = list(range(self.rows))
        random.Random(f"{self.seed} {epoch}").shuffle(order)
        while self.given < (epoch + 1) * self.rows:
            start = self.given - epoch * self.rows
            step = order[start : start + self.size]
            self.given += len(step)
            yield [row for place, row in enumerate(step) if place % self.ranks == self.rank]

    def state(self):
        return {"given": self.given}

    def resume(self, state):
        self.given = state["given"]
