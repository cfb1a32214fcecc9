# a reader's answer to `PageTable`, in which others made the mistakes of wrong/e07/PageTable_reader.diff

from collections import OrderedDict


class PageTable:
    def __init__(self, capacity_bytes, page_bytes=2**16):
        self.page_bytes, self.frames = page_bytes, capacity_bytes // page_bytes
        self.resident = OrderedDict()
        self.ranges = {}
        self.faults = self.bytes_in = self.bytes_out = 0

    def touch(self, key, nbytes, write=True):
        new = key not in self.ranges
        if new:
            first = sum(len(pages) for pages in self.ranges.values())
            self.ranges[key] = range(first, first + -(-nbytes // self.page_bytes))
        for page in self.ranges[key]:
            if page in self.resident:
                self.resident.move_to_end(page)
                self.resident[page] |= write
                continue
            if not new:
                self.faults += 1
                self.bytes_in += self.page_bytes
            self.evict_to(self.frames - 1)
            self.resident[page] = write

    def evict_to(self, count):
        while len(self.resident) > count:
            _, dirty = self.resident.popitem(last=False)
            self.bytes_out += self.page_bytes * dirty
