"""Quality filters: published rules, a language guess, a small classifier.

    rule         a named test with its source, and what a list of them drops
    gopher       length, symbols, bullets, stop words      repetition   lines, n-grams said twice
    c4           lines without end, code, placeholders     fineweb      lists, short lines
    language     by the words that every sentence has
    classifier   texts like those you want, by a linear model over hashed n-grams

A rule is told a text and says whether it fails. Words are what white space parts, as in Gopher.
"""
