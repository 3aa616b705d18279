"""Read label log-probabilities from what an endpoint returned, and nothing else.

A token counts for a label when it equals the label after stripping white space and simple
punctuation; the variants of one label add up as probabilities. A label that was not returned, or
whose value is a sentinel, is missing: NaN with a reason and an upper bound, never a number.
"""

import math
from dataclasses import dataclass

import numpy as np

JOINT_LABELS = ("A", "B", "C", "D")
BINARY_LABELS = ("Yes", "No")
LABELS_OF = {"joint": JOINT_LABELS, "binary": BINARY_LABELS, "support": BINARY_LABELS}  # by readout
STRIP = "".join(filter(str.isspace, map(chr, range(0x3001)))) + ".,:;!?()[]{}\"'`*"

NOT_RETURNED = "label not returned"
SENTINEL = "sentinel instead of a log-probability"
NO_LOGPROBS = "answer without log-probabilities"
ANOTHER_MODEL = "answered by another model"


@dataclass(frozen=True)
class LabelReading:
    """Log-probabilities of the labels (nats, NaN where missing), why, and what bounds them."""

    values: tuple
    reasons: tuple
    bounds: tuple
    mass: float


def normalise(token):
    """A token without surrounding white space and simple punctuation."""
    return token.strip(STRIP)


def usable(value):
    """Whether a number can be a log-probability.

    NaN, infinities, positive values and the fillers that endpoints return (-9999, -100) cannot.
    """
    return isinstance(value, (int, float)) and math.isfinite(value) and -1000 < value <= 0 and value != -100


def says_nothing(value):
    """Whether a value leaves open how likely its token is: NaN, null, text, a positive number.

    A filler (-9999, -100, minus infinity) does not: it stands for a token that is hardly ever said, so another variant
    of the same label still counts.
    """
    return not isinstance(value, (int, float)) or math.isnan(value) or value > 0


def read_labels(tokens, logprobs, labels):
    """Labels of one answer, by the definition (the slow, plain version of :func:`label_matrix`).

    Parameters
    ----------
    tokens, logprobs : list of str, list of float, or None
        Alternatives of the first generated token, as received. Two lists of unequal length do not tell which
        value belongs to which token, so they are read as no log-probabilities.
    labels : tuple of str

    Returns
    -------
    LabelReading
        The bound of a label that was not returned is min(smallest returned, log of the residual mass); one that came
        back with a sentinel may have all the mass that no other token has.
    """
    if not tokens or not logprobs or len(tokens) != len(logprobs):
        gone = (math.nan,) * len(labels)
        return LabelReading(gone, (NO_LOGPROBS,) * len(labels), gone, math.nan)
    pairs = [(normalise(t or ""), v) for t, v in zip(tokens, logprobs, strict=True)]
    good = [v for _, v in pairs if usable(v)]
    residual = 1 - math.fsum(math.exp(v) for v in good)
    values, reasons, bounds = [], [], []
    for label in labels:
        variants = [v for t, v in pairs if t == label]
        readable = [v for v in variants if usable(v)]
        if readable and not any(map(says_nothing, variants)):
            value, reason, bound = float(np.logaddexp.reduce(readable)), None, math.nan
        elif variants:
            left = residual + math.fsum(math.exp(v) for v in readable)
            value, reason, bound = math.nan, SENTINEL, math.log(left) if left > 0 else 0.0
        else:
            left = math.log(residual) if residual > 0 else math.inf
            value, reason, bound = math.nan, NOT_RETURNED, min([*good, left], default=math.nan)
        values.append(value)
        reasons.append(reason)
        bounds.append(bound)
    mass = math.fsum(math.exp(v) for v in values if not math.isnan(v))
    return LabelReading(tuple(values), tuple(reasons), tuple(bounds), mass)


def label_matrix(tokens, logprobs, labels):
    """Labels of many answers at once.

    Parameters
    ----------
    tokens, logprobs : pyarrow ListArray of string, ListArray of double, length n
    labels : tuple of L str

    Returns
    -------
    values : (n, L) array of float, in nats; NaN where missing
    sentinel : (n, L) array of bool; True where a label came back and is missing all the same
    mass : (n,) array of float; summed probability of the labels, NaN without log-probabilities
    """
    n, width = len(tokens), len(labels)
    lengths, values_per_row = (np.asarray(a.value_lengths().fill_null(0)) for a in (tokens, logprobs))
    paired = lengths == values_per_row
    kept = np.repeat(paired, lengths)
    lengths = np.where(paired, lengths, 0)
    rows = np.repeat(np.arange(n), lengths)
    encoded = tokens.flatten().fill_null("").dictionary_encode()
    wanted = {label: i for i, label in enumerate(labels)}
    code_of = np.array([wanted.get(normalise(t), -1) for t in encoded.dictionary.to_pylist()] or [-1])
    codes = code_of[np.asarray(encoded.indices)[kept]]
    flat = np.asarray(logprobs.flatten().to_numpy(zero_copy_only=False), dtype=float)[np.repeat(paired, values_per_row)]
    good = np.isfinite(flat) & (flat > -1000) & (flat <= 0) & (flat != -100)
    cell = rows * width + codes
    readable = (codes >= 0) & good
    top = np.full(n * width, -np.inf)
    np.maximum.at(top, cell[readable], flat[readable])
    share = np.bincount(cell[readable], np.exp(flat[readable] - top[cell[readable]]), n * width)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.where(share > 0, top + np.log(share), np.nan).reshape(n, width)
    spoiled = np.bincount(cell[(codes >= 0) & ~good], minlength=n * width).reshape(n, width) > 0
    open_ = np.bincount(cell[(codes >= 0) & (np.isnan(flat) | (flat > 0))], minlength=n * width).reshape(n, width) > 0
    values = np.where(open_, np.nan, values)
    mass = np.where(lengths > 0, np.nansum(np.exp(values), axis=1), np.nan)
    return values, spoiled & np.isnan(values), mass
