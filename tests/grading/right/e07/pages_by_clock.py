class PageTable:
    """No order in a dict: each page has the time of its last touch."""

    def __init__(self, capacity_bytes, page_bytes=65536):
        self.page_bytes, self.frames = page_bytes, capacity_bytes // page_bytes
        self.resident, self.dirty, self.ranges, self.now = {}, set(), {}, 0
        self.faults = self.bytes_in = self.bytes_out = 0

    def touch(self, key, nbytes, write=True):
        known = key in self.ranges
        if not known:
            count = (nbytes + self.page_bytes - 1) // self.page_bytes
            self.ranges[key] = [(key, n) for n in range(count)]
        for page in self.ranges[key]:
            self.now += 1
            if page not in self.resident:
                self.evict_to(self.frames - 1)
                if known:
                    self.faults += 1
                    self.bytes_in += self.page_bytes
            self.resident[page] = self.now
            if write:
                self.dirty.add(page)

    def evict_to(self, count):
        excess = max(len(self.resident) - max(count, 0), 0)
        for page in sorted(self.resident, key=self.resident.get)[:excess]:
            del self.resident[page]
            if page in self.dirty:
                self.dirty.discard(page)
                self.bytes_out += self.page_bytes
