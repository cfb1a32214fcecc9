"""Raw text to what is worth training on, each step from scratch.

    documents       rows from files, folders, `datasets`      steps     a row in, a row out
    filters/        published rules, language, a classifier   private   addresses, numbers, keys
    deduplication/  equal, near, shared passages              contamination   a test set's words
    prepare         all of it, going on after a kill, as `minitrain data prepare` does:
                    settings ▸ same ▸ blocks ▸ drops ▸ shards ▸ report

Afterwards: data/stream.
"""
