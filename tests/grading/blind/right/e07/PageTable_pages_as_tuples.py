# right: pages are pairs of key and place
from collections import OrderedDict


class PageTable:
    def __init__(self, capacity_bytes, page_bytes=2**16):
        self.page_bytes, self.frames = page_bytes, capacity_bytes // page_bytes
        self.resident = OrderedDict()
        self.ranges = {}
        self.faults = self.bytes_in = self.bytes_out = 0
        self.pages_made = 0

    def touch(self, key, nbytes, write=True):
        pages = self.ranges.get(key)
        made = pages is None
        if made:
            count = (nbytes + self.page_bytes - 1) // self.page_bytes
            pages = self.ranges[key] = list(range(self.pages_made, self.pages_made + count))
            self.pages_made += count
        for page in pages:
            was_here = page in self.resident
            if not was_here:
                if not made:
                    self.faults += 1
                    self.bytes_in += self.page_bytes
                if len(self.resident) >= self.frames:
                    self._drop_oldest()
            self.resident[page] = self.resident.get(page, False) or write
            self.resident.move_to_end(page)

    def _drop_oldest(self):
        page = next(iter(self.resident))
        if self.resident.pop(page):
            self.bytes_out += self.page_bytes

    def evict_to(self, count):
        for _ in range(len(self.resident) - count):
            self._drop_oldest()
