"""Raw text to what is worth training on, each step from scratch.

    documents       rows from files, folders, `datasets`      private   addresses, numbers, keys
    filters/        published rules, language, a classifier; steps: a row in, a row out
    deduplication/  equal, near, shared passages              contamination   a test set's words
    settings, prepare, report   all of it, resumed after a kill, as `minitrain data prepare` does

Afterwards: data/stream.
"""
