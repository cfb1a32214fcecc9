# exercise: PageTable
# differs: a running number of pages made, lists of pages, two ways for pages that are there
# (move_to_end) and that are not, eviction by a for loop over the oldest
import itertools
from collections import OrderedDict


class PageTable:
    def __init__(self, capacity_bytes: int, page_bytes: int = 2**16):
        self.page_bytes, self.frames = page_bytes, capacity_bytes // page_bytes
        self.resident = OrderedDict()  # page -> is it dirty? The oldest touch first
        self.ranges = {}  # key -> its own page numbers, in order
        self.faults = self.bytes_in = self.bytes_out = 0
        self._numbers = itertools.count()

    def touch(self, key, nbytes: int, write: bool = True) -> None:
        made = self.ranges.get(key)
        if made is None:
            needed = (nbytes + self.page_bytes - 1) // self.page_bytes
            self.ranges[key] = list(itertools.islice(self._numbers, needed))
        for page in self.ranges[key]:
            if page in self.resident:
                self.resident.move_to_end(page)
                if write:
                    self.resident[page] = True
                continue
            if made is not None:
                self.faults += 1
                self.bytes_in += self.page_bytes
            if len(self.resident) >= self.frames:
                self.evict_to(self.frames - 1)
            self.resident[page] = bool(write)

    def evict_to(self, count: int) -> None:
        surplus = max(0, len(self.resident) - count)
        oldest = list(itertools.islice(self.resident, surplus))
        for page in oldest:
            if self.resident.pop(page):
                self.bytes_out += self.page_bytes
