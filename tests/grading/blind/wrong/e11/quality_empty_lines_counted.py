# exercise: quality
# says: they make shares smaller than they are
# empty lines are counted among the lines, so a list or teasers with a blank line between two
# lines passes

def quality(text: str) -> str:
    words = text.split()
    if len(words) < 50:
        return "too_few_words"
    mean = sum(map(len, words)) / len(words)
    if not 3 <= mean <= 10:
        return "unusual_word_length"
    if (text.count("...") + text.count("…")) / len(words) > 0.1:
        return "too_many_ellipses"
    lines = [line.strip() for line in text.split("\n")]
    if sum(line.startswith(("•", "-", "*")) for line in lines) / len(lines) > 0.9:
        return "mostly_bullets"
    if sum(line.endswith(("...", "…")) for line in lines) / len(lines) > 0.3:
        return "lines_break_off"
    if sum(any(c.isalpha() for c in w) for w in words) / len(words) < 0.8:
        return "words_without_letters"
    stops = {"the", "be", "to", "of", "and", "that", "have", "with"}
    if len(stops & {w.lower() for w in words}) < 2:
        return "no_stop_words"
    return ""
