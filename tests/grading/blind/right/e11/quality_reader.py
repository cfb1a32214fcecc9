# a reader's answer to `quality`, in which others made the mistakes of wrong/e11/quality_reader.diff

import re


def quality(text: str) -> str:
    words = text.split()
    if len(words) < 50:
        return "too_few_words"
    mean = sum(len(w) for w in words) / len(words)
    if mean < 3 or mean > 10:
        return "unusual_word_length"
    if (text.count("...") + text.count("…")) / len(words) > 0.1:
        return "too_many_ellipses"
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if sum(line[0] in "•-*" for line in lines) / len(lines) > 0.9:
        return "mostly_bullets"
    if sum(line.endswith(("...", "…")) for line in lines) / len(lines) > 0.3:
        return "lines_break_off"
    if sum(bool(re.search("[^\W\d_]", w)) for w in words) / len(words) < 0.8:
        return "words_without_letters"
    stop = {"the", "be", "to", "of", "and", "that", "have", "with"}
    if len(stop & set(text.lower().split())) < 2:
        return "no_stop_words"
    return ""
