"""From raw text to training text, each step from scratch.

    documents       rows from files, folders, `datasets`      private   masks PII and secrets
    filters/        published rules, language, a classifier; each step maps a row to a row
    deduplication/  exact, near, repeated passages            contamination   test-set overlap
    settings, prepare, report   the whole pipeline, resumable, as `minitrain data prepare` runs it

Next: data/stream.
"""
