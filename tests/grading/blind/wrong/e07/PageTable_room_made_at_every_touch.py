# exercise: PageTable
# says: that is as if a page made room even where the touched one is resident already
# room is made before it is asked whether the page is there: a full table evicts a page also at
# a hit

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
            self.ranges[key] = range(first, first - (-nbytes // self.page_bytes))
        for page in self.ranges[key]:
            self.evict_to(self.frames - 1)
            if page in self.resident:
                dirty = self.resident.pop(page)
            else:
                dirty = False
                if not new:
                    self.faults += 1
                    self.bytes_in += self.page_bytes
            self.resident[page] = dirty or write

    def evict_to(self, count: int) -> None:
        while len(self.resident) > count:
            _, dirty = self.resident.popitem(last=False)
            if dirty:
                self.bytes_out += self.page_bytes
