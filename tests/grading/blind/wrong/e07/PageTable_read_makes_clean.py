# exercise: PageTable
# says: that is as if a page that was written
# a dirty page that is only read becomes clean, and its bytes never go out

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
            if page not in self.resident and not new:
                self.faults += 1
                self.bytes_in += self.page_bytes
            self.resident.pop(page, None)
            self.evict_to(self.frames - 1)
            self.resident[page] = write

    def evict_to(self, count: int) -> None:
        while len(self.resident) > count:
            _, dirty = self.resident.popitem(last=False)
            if dirty:
                self.bytes_out += self.page_bytes
