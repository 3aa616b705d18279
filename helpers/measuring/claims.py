"""The parser of support claims: which candidates does a generated view say are supported?"""

import re

from helpers.channels.prompts import alias

_ALIAS = re.compile(r"\W*candidate[ _-]?0?([1-4])(?!\d)", re.IGNORECASE)
_ONLY_ALIAS = re.compile(_ALIAS.pattern + r"\W*", re.IGNORECASE)
_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)(?:"|(\\?\Z))|([{}\[\],:])|([^\s{}\[\],:"][^{}\[\],:"\n]*)', re.DOTALL)
_AGAINST = re.compile(
    r"contradict|against|missing|absen|lack|unsupport|ambig|unresolv|uncertain|insufficien|refut|oppos|conflict|\bgaps?\b"
    r"|\bnot?\b|\bnon\b"
)
_NOTHING = re.compile(
    r"\W*(?:none|no|nil|null|false|n\W?a|nothing|unknown|unclear|missing|absent|empty|unavailable|insufficient"
    r"|inadequate|unsupported|(?:not|none|nothing) (?:\w+ ){0,2}(?:provided|available|applicable|found|given|present"
    r"|stated|mentioned|specified|identified|reported|supported|sufficient))\W*",
    re.IGNORECASE,
)
_EVIDENCE = (
    r"(?:evidence|support|information|data|facts?|details?|stud(?:y|ies)|sources?|mention|statement|artifacts?|proof)"
)
_KIND = (  # words that may stand between "no" and "evidence"
    r"(?:a|any|and|or|the|direct|explicit|specific|clear|relevant|factual|substantive|supporting|supportive"
    r"|contradicting|further|additional|available|such|sufficient|concrete|empirical|strong|reliable|scientific"
    r"|clinical|quantitative|conclusive)"
)
_MARK = re.compile(r"\W*(?:missing|absent|insufficient|unavailable|not (?:provided|available))\W*", re.IGNORECASE)
_ABSENT = re.compile(
    rf"""
      \b(?:no|without|lacks?|lacking|absence\ of|lack\ of|insufficient|inadequate|missing|absent|not\ enough
         |unavailable)\s+(?:{_KIND}\s+){{0,4}}{_EVIDENCE}\b
    | \b{_EVIDENCE}\b(?:\s+[\w-]+){{0,8}}\s+(?:(?:is|are|was|were)\s+(?:[\w-]+\s+)?)?
         (?:missing|absent|insufficient|inadequate|lacking|unavailable|empty|not\ (?:found|given|present|reported))\b
    | (?:\b(?:not|never|cannot\ be)|n't)\s+(?:[\w-]+\s+){{0,2}}(?:provided?|available|stated?|mention(?:ed)?
         |specif(?:y|ied)|included?|contain(?:ed)?|address(?:ed)?|support(?:ed)?|sufficient)\b
    | \binsufficient\ to\b
    """,
    re.IGNORECASE | re.VERBOSE,
)


def supported_candidates(view_text, fallback=3, *, texts=()):
    """Positions (0 … 3) of the concrete candidates that a generated view claims support for.

    Parameters
    ----------
    view_text : JSON-like text of the generator; a code fence, text around it and a cut at the token cap are allowed for
    fallback : position of the none-of-the-above candidate, which never counts
    texts : the candidates' texts by position. A string that is word for word one of them then names that candidate,
        too: generators list a candidate's text as evidence without its id.

    Returns
    -------
    set of int, or None when the text holds no bracket and no field named support or evidence

    Notes
    -----
    The empty-before content audit of the ASV paper (Appendix A). A candidate counts when one of its support fields
    holds text that does not mark evidence as absent:

    - A candidate is named by an alias (``CANDIDATE_01``) as a key, as the value of a field such as ``candidate_id``,
      or at the beginning of a string. What lies inside such an object or under such a key belongs to it.
    - A support field's name has a word that begins with "support", else, in an object without one, the word "evidence";
      names that say against, missing, absent, ambiguous, unresolved and the like are neither.
    - Its value may be text, a list (one item is enough) or an object (its texts are read together, and one that is just
      "missing", "insufficient" or the like marks them all). Text inherits its field, unless its own object says more.
    - Text counts when it has a word and says neither nothing ("none", "n/a") nor, anywhere in it, that evidence is
      absent, insufficient or unavailable; what is cut off before its fourth word does not. Its truth is not judged.
    """
    for position, text in enumerate(texts):
        view_text = view_text.replace(f'"{text}"', f'"{alias(position)}: {text}"')
    tokens = [_token(m) for m in _TOKEN.finditer(view_text)]
    start = next((i for i, (mark, _) in enumerate(tokens) if mark in "{["), None)
    rest = tokens[start or 0 :][::-1]
    top, found = [], set()
    try:
        while rest:
            top += _members(rest)
        _claims(tuple(top), None, False, found)
    except RecursionError:  # a generator that loops writes thousands of brackets
        return None
    if start is None and not any(_role(key) for key, _ in top):
        return None
    return found - {fallback}


def _token(match):
    """(mark, text) of one token; the mark of a text is 's' (quoted) or 'b' (bare)."""
    quoted, cut, mark, bare = match.groups()
    if mark:
        return mark, ""
    if bare is not None:
        return "b", bare.strip(" '`*-")
    return "s", "" if cut is not None and len(quoted.split()) < 4 else quoted


def _value(rest):
    """The next value of a reversed token list: str, list of values, or tuple of (key, value) pairs."""
    mark, text = rest.pop()
    if mark == "{":
        return tuple(_members(rest))
    if mark != "[":
        return text
    items = []
    while rest and rest[-1][0] not in "]}":
        if rest[-1][0] in ",:":
            rest.pop()
        else:
            items.append(_value(rest))
    if rest and rest[-1][0] == "]":
        rest.pop()
    return items


def _members(rest):
    """(key, value) pairs up to the end of an object; a value without a key has the key ''."""
    pairs = []
    while rest:
        if rest[-1][0] in "}],:":
            if rest.pop()[0] in "}]":
                break
            continue
        item = _value(rest)
        if isinstance(item, str) and rest and rest[-1][0] == ":":
            rest.pop()
            pairs.append((item, _value(rest) if rest and rest[-1][0] not in "},]" else ""))
        elif isinstance(item, str) and pairs and isinstance(pairs[-1][1], str) and not _ALIAS.match(item):
            # the rest of a bare value that holds a comma or a colon
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]}, {item}")
        else:
            pairs.append(("", item))
    return pairs


def _role(key):
    """What a field holds by its name: 'support', 'evidence', 'against' or None."""
    name = re.sub(r"[^a-z]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", key).lower())
    if _AGAINST.search(name):
        return "against"
    return "support" if re.search(r"\bsupport", name) else "evidence" if re.search(r"\bevidences?\b", name) else None


def _alias_position(text):
    match = _ALIAS.match(text)
    return int(match.group(1)) - 1 if match else None


def _only_alias(text):
    return isinstance(text, str) and bool(_ONLY_ALIAS.fullmatch(text))


def _texts(value):
    """All texts of a value, in order."""
    if isinstance(value, str):
        return [value]
    return [text for item in value for text in _texts(item[1] if isinstance(value, tuple) else item)]


def _claims_support(text):
    return bool(re.search(r"[A-Za-z]{2}", text)) and not _NOTHING.fullmatch(text) and not _ABSENT.search(text)


def _claims(value, candidate, in_support, found):
    """Add to ``found`` the positions that a parsed value claims support for."""
    if isinstance(value, str):
        named = _alias_position(value) if candidate is None else candidate
        if in_support and named is not None and _claims_support(value):
            found.add(named)
    elif isinstance(value, list):
        for item in value:
            _claims(item, candidate, in_support, found)
    else:
        _object_claims(value, candidate, in_support, found)


def _object_claims(pairs, candidate, in_support, found):
    """The claims of an object's (key, value) pairs."""
    keyed = [_alias_position(key) for key, _ in pairs]
    roles = [_role(key) if named is None else None for (key, _), named in zip(pairs, keyed, strict=True)]
    own = [_alias_position(v) for (_, v), role in zip(pairs, roles, strict=True) if not role and _only_alias(v)]
    candidate = own[0] if len(own) == 1 else candidate
    if in_support and not any(roles) and set(keyed) <= {None} and len(own) <= 1:
        texts = [text for _, value in pairs if not _only_alias(value) for text in _texts(value)]
        if not any(_MARK.fullmatch(text) for text in texts):
            _claims(". ".join(texts), candidate, True, found)
        return
    support = "support" if "support" in roles else "evidence"
    for (_, value), role, named in zip(pairs, roles, keyed, strict=True):
        if not role and _only_alias(value) and named is None:
            candidate = _alias_position(value)
            continue
        counts = role == support if role else in_support and not any(roles)
        _claims(value, candidate if named is None else named, counts, found)
