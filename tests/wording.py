"""Whether a text repeats another one: runs of words that both share, figures and names aside."""

import re

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


def counted_words(text, names=()):
    """Lower-case words of a text without numbers, acronyms and the given names.

    Figures, drug names, scales and trials are facts, not wording, so they do not count.
    """
    skip = {n.lower() for n in names}
    words = []
    for token in _WORD.findall(text):
        letters = [c for c in token if c.isalpha()]
        if any(c.isdigit() for c in token) or not letters:
            continue
        if sum(c.isupper() for c in letters) >= 2 or token.lower() in skip:
            continue
        words.append(token.lower())
    return words


def shared_runs(text, sources, names=(), length=8):
    """Runs of ``length`` counted words that a text shares with any source text.

    ``sources`` is the set made by :func:`source_runs`; returns a sorted list of strings.
    """
    words = counted_words(text, names)
    runs = {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}
    return sorted(" ".join(run) for run in runs & sources)


def source_runs(texts, names=(), length=8):
    """All runs of ``length`` counted words in the source texts, as a set of tuples."""
    runs = set()
    for text in texts:
        words = counted_words(text, names)
        runs.update(tuple(words[i : i + length]) for i in range(len(words) - length + 1))
    return runs
