# exercise: PageTable
# how it differs: three cases apart (there, away, new), move_to_end instead of pop and put, lists of
# page numbers and a counter of pages made
from collections import OrderedDict


class PageTable:
    """Which pages are in memory, of which `capacity_bytes` are theirs."""

    def __init__(self, capacity_bytes: int, page_bytes: int = 2**16):
        self.page_bytes, self.frames = page_bytes, capacity_bytes // page_bytes
        self.resident = OrderedDict()  # page -> is it dirty? The oldest touch first
        self.ranges = {}  # key -> its own page numbers, in order
        self.faults = self.bytes_in = self.bytes_out = 0
        self._made = 0

    def _pages_of(self, key, nbytes):
        """(page, is it new) in order."""
        if key in self.ranges:
            return [(page, False) for page in self.ranges[key]]
        count = (nbytes + self.page_bytes - 1) // self.page_bytes
        self.ranges[key] = [self._made + i for i in range(count)]
        self._made += count
        return [(page, True) for page in self.ranges[key]]

    def touch(self, key, nbytes: int, write: bool = True) -> None:
        for page, fresh in self._pages_of(key, nbytes):
            if page in self.resident:
                self.resident.move_to_end(page)
            else:
                if not fresh:
                    self.faults += 1
                    self.bytes_in += self.page_bytes
                self.evict_to(max(self.frames - 1, 0))
                self.resident[page] = False
            self.resident[page] |= write
            if self.frames < 1:
                self.evict_to(0)

    def evict_to(self, count: int) -> None:
        for _ in range(len(self.resident) - max(count, 0)):
            page = next(iter(self.resident))
            self.bytes_out += self.page_bytes if self.resident.pop(page) else 0
