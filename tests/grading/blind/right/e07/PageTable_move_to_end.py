# right: cases told apart one by one, move_to_end and a loop over the oldest; page numbers from a counter
from collections import OrderedDict


class PageTable:
    def __init__(self, capacity_bytes: int, page_bytes: int = 2**16):
        self.page_bytes, self.frames = page_bytes, capacity_bytes // page_bytes
        self.resident = OrderedDict()
        self.ranges = {}
        self.faults = self.bytes_in = self.bytes_out = 0
        self.next_page = 0

    def touch(self, key, nbytes: int, write: bool = True) -> None:
        made = key not in self.ranges
        if made:
            count = (nbytes + self.page_bytes - 1) // self.page_bytes
            self.ranges[key] = list(range(self.next_page, self.next_page + count))
            self.next_page += count
        for page in self.ranges[key]:
            if page in self.resident:
                self.resident.move_to_end(page)
                self.resident[page] |= write
                continue
            if not made:
                self.faults += 1
                self.bytes_in += self.page_bytes
            if len(self.resident) >= self.frames:
                self.evict_to(self.frames - 1)
            self.resident[page] = write

    def evict_to(self, count: int) -> None:
        surplus = max(0, len(self.resident) - count)
        for page in list(self.resident)[:surplus]:
            if self.resident.pop(page):
                self.bytes_out += self.page_bytes
