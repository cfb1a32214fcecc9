# exercise: PageTable
# says: even where the touched one is resident already
# room is made before it is known whether the page is there: with all frames full, a touch of a
# resident page evicts one (maybe itself, and then its dirtiness is lost)

from collections import OrderedDict


class PageTable:
    def __init__(self, capacity_bytes: int, page_bytes: int = 2**16):
        self.page_bytes, self.frames = page_bytes, capacity_bytes // page_bytes
        self.resident = OrderedDict()  # page -> is it dirty? The oldest touch first
        self.ranges = {}  # key -> its own page numbers, in order
        self.faults = self.bytes_in = self.bytes_out = 0

    def touch(self, key, nbytes: int, write: bool = True) -> None:
        new = key not in self.ranges
        if new:
            first = sum(len(pages) for pages in self.ranges.values())
            count = -(-nbytes // self.page_bytes)
            self.ranges[key] = range(first, first + count)
        for page in self.ranges[key]:
            fault = page not in self.resident and not new
            self.evict_to(self.frames - 1)
            dirty = self.resident.pop(page, False) or write
            if fault:
                self.faults += 1
                self.bytes_in += self.page_bytes
            self.resident[page] = dirty

    def evict_to(self, count: int) -> None:
        while len(self.resident) > count:
            _, dirty = self.resident.popitem(last=False)
            if dirty:
                self.bytes_out += self.page_bytes
