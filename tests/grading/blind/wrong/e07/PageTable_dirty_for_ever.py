# exercise: PageTable
# says: as if a page stayed dirty when it was written back
# once written, a page counts as dirty for ever: read back and evicted again, its bytes go out
# again although it was not written since it came

from collections import OrderedDict


class PageTable:
    def __init__(self, capacity_bytes: int, page_bytes: int = 2**16):
        self.page_bytes, self.frames = page_bytes, capacity_bytes // page_bytes
        self.resident = OrderedDict()  # page -> is it dirty? The oldest touch first
        self.ranges = {}  # key -> its own page numbers, in order
        self.faults = self.bytes_in = self.bytes_out = 0
        self.written = set()

    def touch(self, key, nbytes: int, write: bool = True) -> None:
        new = key not in self.ranges
        if new:
            first = sum(len(pages) for pages in self.ranges.values())
            count = -(-nbytes // self.page_bytes)
            self.ranges[key] = range(first, first + count)
        for page in self.ranges[key]:
            if page in self.resident:
                self.resident.move_to_end(page)
            else:
                if not new:
                    self.faults += 1
                    self.bytes_in += self.page_bytes
                self.evict_to(self.frames - 1)
            if write:
                self.written.add(page)
            self.resident[page] = page in self.written

    def evict_to(self, count: int) -> None:
        while len(self.resident) > count:
            _, dirty = self.resident.popitem(last=False)
            if dirty:
                self.bytes_out += self.page_bytes
