"""The report's form: one colour a channel, tables with the paper's numbers beside ours, computed sentences."""

import html
import json
import platform
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import HTML, Markdown, display

from helpers.channels.channels import YES_NO
from helpers.measuring.inference import METHODS, interval
from helpers.measuring.reducers import latin_square_shares, read_cells
from helpers.reporting.params import ROOT
from helpers.study.files import DataError

COLUMNS = (
    "id", "quantity", "cohort", "n_trajectories", "n_transitions", "estimate", "low", "high", "level", "unit",
    "paper_estimate", "paper_low", "paper_high",
)  # fmt: skip
TOO_FEW = 12  # trajectories below which an interval says nothing about a direction
FEW = 30  # trajectories below which percentile intervals cover visibly less than they say (`make coverage`)
PACKAGES = ("numpy", "pandas", "pyarrow", "scipy", "statsmodels", "matplotlib", "seaborn", "openai")


def output_folder(path):
    """The profile's output folder under the repository, made if needed; a clear error if it is unwritable."""
    folder = ROOT / path
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OSError(
            f"{path}: cannot be written ({error.strerror}). Make the folder writable or set OUTPUT to another one."
        ) from None
    return folder


# -- tables -----------------------------------------------------------------------------------------


def paper_numbers(path):
    """The published numbers, indexed by id; nothing else in the report is typed in."""
    return pd.read_csv(path).set_index("id")


class Results:
    """The section's exact table, one row a quantity, in the order in which they are added.

    ``method`` is how intervals are taken from bootstrap replicates, see :func:`helpers.inference.interval`; ``counted``
    is how the table for reading calls the two counts behind a row.
    """

    def __init__(self, paper, section, method="percentile", counted=("trajectories", "transitions")):
        if method not in METHODS:
            raise ValueError(f"INTERVAL = {method!r}; use one of {', '.join(METHODS)}.")
        self.paper = paper
        self.section = section
        self.method = method
        self.counted = counted
        self.rows = []

    def add(self, name, estimate, replicates=None, *, cohort, n=None, transitions=None, level=0.95,
            unit=None, quantity=None, low=np.nan, high=np.nan, smaller=None):  # fmt: skip
        """Add one quantity; its interval comes from bootstrap replicates, or from ``low`` and ``high``.

        An interval that allows for the number of trajectories ``n`` needs at least two; for a contrast of two cohorts
        ``smaller`` is the number in the smaller one, which decides.

        Text and unit are those of the published quantity of that id, unless given.
        """
        known = self.paper.loc[name] if name in self.paper.index else None
        behind = n if smaller is None else smaller
        if replicates is not None:
            low, high = interval(replicates, level, method=self.method, n=behind, point=estimate)
        row = {
            "id": name,
            "quantity": quantity or (known["quantity"] if known is not None else name),
            "cohort": cohort,
            "n_trajectories": n,
            "n_transitions": transitions,
            "estimate": float(estimate),
            "low": float(low),
            "high": float(high),
            "level": level if np.isfinite(low) else np.nan,
            "unit": unit or (known["unit"] if known is not None else "nats"),
            "paper_estimate": float(known["estimate"]) if known is not None else np.nan,
            "paper_low": float(known["low"]) if known is not None else np.nan,
            "paper_high": float(known["high"]) if known is not None else np.nan,
        }
        self.rows.append(row)
        return row

    def __getitem__(self, name):
        return next(row for row in self.rows if row["id"] == name)

    def frame(self):
        """All rows as a DataFrame with the declared columns."""
        frame = pd.DataFrame(self.rows, columns=list(COLUMNS))
        return frame.astype({"n_trajectories": "Int64", "n_transitions": "Int64"})

    def unreported(self):
        """Published ids of this section that have no row yet; a finished notebook has none."""
        wanted = self.paper.index[self.paper["section"] == self.section]
        return [name for name in wanted if name not in {row["id"] for row in self.rows}]

    def readable(self, last=None):
        """The rows, or the last so many, as a table for reading: ours and the published numbers."""
        rows = self.rows[-last:] if last else self.rows
        return pd.DataFrame(
            {
                "quantity": [row["quantity"] for row in rows],
                "unit": [row["unit"] for row in rows],
                self.counted[0]: [str(row["n_trajectories"] or "") for row in rows],
                self.counted[1]: [str(row["n_transitions"] or "") for row in rows],
                "measured here": [amount(r["estimate"], r["low"], r["high"], r["unit"]) for r in rows],
                "published": [published(r) for r in rows],
            },
            index=pd.Index([row["id"] for row in rows], name="id"),
        )

    def write(self, folder):
        """Write ``<section>.csv`` and return the table for reading."""
        self.frame().to_csv(Path(folder) / f"{self.section}.csv", index=False, float_format="%.6g", lineterminator="\n")
        return self.readable()


def completeness(plan, table, *, may_be_empty=False):
    """Planned, returned and complete cells per channel, and why the others are missing.

    DataError where nothing at all was answered, unless ``may_be_empty``: the section has nothing to go on with.
    """
    values, reason, mass = read_cells(plan, table)
    wanted = np.where(plan["readout"].isin(YES_NO).to_numpy(), 2, values.shape[1])
    returned = np.isfinite(values).sum(axis=1)
    answered = ~np.isin(reason.astype(str), ["not recorded", "view not frozen"])
    if not (answered.any() or may_be_empty):
        why = ", ".join(f"{count:,} {what}" for what, count in pd.Series(reason).value_counts().items())
        raise DataError(
            f"nothing of this section is recorded for {' and '.join(plan['stack'].unique())}: of {len(plan):,} cells {why}; "
            'ACQUIRE = "missing" asks for them.'
        )
    frame = pd.DataFrame(
        {
            "channel": channel_names(plan),
            "planned": 1,
            "answered": answered,
            "complete": reason == None,  # noqa: E711 - an array of objects
            "labels": np.where(answered, wanted, 0),
            "returned": np.where(answered, returned, 0),
            "mass": mass,
        }
    )
    groups = frame.groupby("channel", sort=False)
    out = groups[["planned", "answered", "complete"]].sum()
    with np.errstate(invalid="ignore"):
        out["label coverage"] = groups["returned"].sum() / groups["labels"].sum()
    out["label mass (mean)"] = groups["mass"].mean()
    out["label mass (least)"] = groups["mass"].min()
    why = pd.Series(reason, index=frame["channel"]).dropna().groupby(level=0, sort=False).value_counts()
    out["missing because"] = [
        "; ".join(f"{w}: {n}" for w, n in why[name].items()) if name in why.index.get_level_values(0) else "–"
        for name in out.index
    ]
    return out


def what_is_followed(results, prefix, ends, energies):
    """Mean shares of the log-probabilities' spread that follow candidate, letter and neither, by channel.

    Adds the rows ``<prefix>.follows_candidate`` and ``<prefix>.follows_letter``; see ``reducers.latin_square_shares``.

    Parameters
    ----------
    results : Results
    ends, energies : from ``reducers.endpoint_energies``
    """
    shares = pd.DataFrame(latin_square_shares(energies), columns=["candidate", "letter", "rest"])
    count = ends.loc[shares["letter"].notna(), "trajectory_id"].nunique()
    for part in ("candidate", "letter"):
        results.add(f"{prefix}.follows_{part}", shares[part].mean(), cohort="complete endpoints, all channels", n=count,
                    unit="proportion", quantity=f"share of the spread that follows the {part}")  # fmt: skip
    return shares.groupby(channel_names(ends), sort=False).mean()


def channel_names(plan):
    """A short, unique name of each planned cell's channel, as an array."""
    fields = ["template", "view", "authority", "source_order", "readout", "stack", "view_state", "slice"]
    shown = [f for f in fields if plan[f].nunique(dropna=False) > 1 or f in ("template", "view")]
    parts = plan[shown].astype("string")
    if "view_state" in shown:
        parts["view_state"] = ("view of state " + plan["view_state"].astype("Int64").astype("string")).fillna("view of its own state")
    return np.array([" · ".join(row) for row in parts.fillna("–").itertuples(index=False)], dtype=object)


# -- numbers in words -------------------------------------------------------------------------------


def _digits(low, high, unit):
    if unit == "count":
        return 0
    if not (np.isfinite(low) and np.isfinite(high)) or high <= low:
        return 3
    return int(np.clip(np.ceil(-np.log10((high - low) / 2)) + 1, 1, 4))


def amount(estimate, low=np.nan, high=np.nan, unit="nats"):
    """A number rounded by its interval: ``+0.163 [0.102, 0.218]``; a dash when there is none.

    An endpoint that is not zero gets as many digits as it takes, up to six, not to be printed as zero.
    """
    if not np.isfinite(estimate):
        return "–"
    if unit == "probability" and estimate < 0.001:
        return "<0.001"
    d = _digits(low, high, unit)
    while d < 6 and any(v and abs(v) < 0.5 * 10**-d for v in (low, high)):
        d += 1
    return _written(estimate, low, high, unit, d)


def _written(estimate, low, high, unit, digits):
    sign = "+" if unit in ("nats", "AUC difference") else ""
    text = f"{estimate:,.{digits}f}" if unit == "count" else f"{estimate:{sign}z.{digits}f}"
    return f"{text} [{low:z.{digits}f}, {high:z.{digits}f}]" if np.isfinite(low) and np.isfinite(high) else text


def published(row):
    """The published number of a result row with as many digits as it was published with; a dash without one."""
    values = [row[f"paper_{part}"] for part in ("estimate", "low", "high")]
    if not np.isfinite(values[0]):
        return "–"
    digits = max(-Decimal(str(float(v))).as_tuple().exponent for v in values if np.isfinite(v))
    return _written(*values, row["unit"], 0 if row["unit"] == "count" else digits)


def in_words(row):
    """One result row as text with its unit, its interval and the published number where there is one."""
    unit = f" {row['unit']}" if row["unit"].startswith("nats") else ""  # the others are told by the sentence
    ours = amount(row["estimate"], row["low"], row["high"], row["unit"])
    return f"{ours}{unit}" + (f" (published: {published(row)})" if np.isfinite(row["paper_estimate"]) else "")


def side(low, high, above="above zero", below="below zero", neither="not separated from zero",
         without="without an interval"):  # fmt: skip
    """Where an interval lies relative to zero, in words; ``without`` where there is none."""
    if not (np.isfinite(low) and np.isfinite(high)):
        return without
    return above if low > 0 else below if high < 0 else neither


def agreement(row):
    """Whether a result agrees with the published number, in words; a dash where that cannot be said.

    What can be compared depends on the unit. Nats of two instruments share no scale, so only the side of zero is, and
    only where our interval and the published one, if there is one, lie off it. An AUC has a side of one half; an AUC
    and a share of transitions have a scale of their own, so that intervals may overlap or not. Nothing is said of a
    quantity that has no sign by definition (the unit of such a one is not plain nats), or that was measured without an
    interval; and nothing but that of fewer than ``TOO_FEW`` trajectories.
    """
    middle = {"nats": 0.0, "AUC difference": 0.0, "AUC": 0.5}.get(row["unit"])
    if not np.isfinite([row["estimate"], row["low"], row["paper_estimate"]]).all() or middle is None and row["unit"] != "proportion":
        return "–"
    if row["n_trajectories"] < TOO_FEW:
        return f"too few to say (n = {row['n_trajectories']:.0f})"
    words = []
    if middle is not None:
        same = np.sign(row["estimate"] - middle) == np.sign(row["paper_estimate"] - middle)
        if row["low"] <= middle <= row["high"]:
            words.append("our direction is not settled")
        elif row["paper_low"] <= middle <= row["paper_high"] or row["paper_estimate"] == middle:
            words.append("the published direction is not settled")
        else:
            words.append("same direction" if same else "other direction")
            if not np.isfinite(row["paper_low"]):
                words.append("published without an interval")
    if row["unit"] != "nats" and np.isfinite(row["paper_low"]):
        overlap = row["low"] <= row["paper_high"] and row["paper_low"] <= row["high"]
        words.append(f"intervals {'overlap' if overlap else 'apart'}")
    return ", ".join(words) or "–"


def caution(n=None, method="percentile", unit="trajectories"):
    """What to say beside percentile intervals of fewer than ``FEW`` resampled units; nothing otherwise.

    Of fewer than two units there is no interval to speak of.
    """
    if n is None or not 2 <= n < FEW or method != "percentile":
        return ""
    return (
        f" With {n} {unit} a percentile interval is too narrow; read it as the least uncertainty there is, "
        'or set `INTERVAL = "expanded"`.'
    )


def finding(text, n=None, method="percentile", unit="trajectories"):
    """Show a computed sentence; it is tagged so that the index can quote it.

    ``n`` is the smallest number of resampled units behind its intervals, which are taken by ``method``; see
    :func:`caution`.
    """
    display(Markdown(f"**Finding.** {text}{caution(n, method, unit)}"))


def escaped(text):
    """Show text from a trace, a view or a model: escaped, never interpreted."""
    display(HTML(f"<pre style='white-space: pre-wrap'>{html.escape(str(text))}</pre>"))


def colophon(stacks, *asked):
    """The last cell: versions, evaluator identity and how many recordings were used.

    ``asked`` are the section's pairs of a plan and the recordings' table; without any nothing is said of recordings.
    """
    rows = [("python", platform.python_version())]
    rows += [(name, version(name)) for name in PACKAGES]
    for stack in stacks:
        rows += [(f"stack {stack.name}", json.dumps(stack.identity)), (f"sampling {stack.name}", json.dumps(stack.sampling))]
    if asked:
        keys = set().union(*(plan["key"].dropna() for plan, _ in asked))
        used = keys & set().union(*(table["key"].to_pylist() for _, table in asked))
        rows += [("recordings used", f"{len(used):,} of {len(keys):,} different questions that the frozen views allow")]
    return pd.DataFrame(rows, columns=["what", "value"]).set_index("what")
