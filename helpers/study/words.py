"""Content words of a text."""

import re

_STOP = frozenset(
    "a an and are as at be by can did do does for from had has have how in into is it its of on or than that the their "
    "there this those to was were what when whether which who will with without after before between during".split()
)


def terms(text):
    """Content words of a text, lower case, without stop words and plural s."""
    words = re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", text.lower())
    return [w[:-1] if len(w) > 3 and w.endswith("s") and not w.endswith("ss") else w for w in words if w not in _STOP]
