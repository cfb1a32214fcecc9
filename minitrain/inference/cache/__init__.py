"""Where keys and values are kept: dense rows, pages, few bits, a ring. Each gives a `Reader`."""
