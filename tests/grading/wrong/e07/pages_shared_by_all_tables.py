# exercise: PageTable
# says: keep all in `self`

from collections import OrderedDict


class PageTable:
    resident = OrderedDict()
    ranges = {}

    def __init__(self, capacity_bytes, page_bytes=2**16):
        self.page_bytes, self.frames = page_bytes, capacity_bytes // page_bytes
        self.faults = self.bytes_in = self.bytes_out = 0

    def touch(self, key, nbytes, write=True):
        new = key not in self.ranges
        if new:
            self.ranges[key] = [(key, n) for n in range(-(-nbytes // self.page_bytes))]
        for page in self.ranges[key]:
            if page not in self.resident and not new:
                self.faults += 1
                self.bytes_in += self.page_bytes
            dirty = self.resident.pop(page, False) or write
            self.evict_to(self.frames - 1)
            self.resident[page] = dirty

    def evict_to(self, count):
        while len(self.resident) > count:
            _, dirty = self.resident.popitem(last=False)
            self.bytes_out += self.page_bytes * dirty
