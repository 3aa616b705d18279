"""The counted part of the data card: ``python -m tests.datacard`` rewrites it in ``data/README.md``."""

import sys
from collections import Counter

import pandas as pd

from helpers.channels.sections import SECTIONS
from helpers.reporting.params import ROOT
from helpers.study.files import read_jsonl
from helpers.study.tasks import load_library, load_tasks
from helpers.study.traces import acquired_artifact, load_trajectories

CARD = ROOT / "data" / "README.md"
BEGIN, END = "<!-- counted: begin -->", "<!-- counted: end -->"


def _line(name, counts):
    return f"- {name}: " + ", ".join(f"{k} {n}" for k, n in counts) + "."


def counted(root=ROOT):
    """The counts of the frozen data as Markdown lines."""
    data = root / "data"
    tasks, library = load_tasks(data / "tasks.jsonl"), load_library(data / "library.jsonl")
    trajectories = load_trajectories(data / "trajectories.jsonl", tasks)
    years = [t["source"]["year"] for t in tasks]
    modes = Counter(step["mode"] for t in trajectories for step in t.steps)
    artifact = sum(acquired_artifact(t) for t in trajectories)
    last = sorted(len(t.projected[-1]) for t in trajectories)
    kinds = Counter(row["kind"] for row in read_jsonl(data / "views.jsonl"))
    lines = [
        f"- tasks: {len(tasks)}; library entries: {len(library)}; years of the articles: {min(years)} to {max(years)}.",
        _line("tasks by family", sorted(Counter(t["family"] for t in tasks).items())),
        _line("tasks by reviewed target", sorted(Counter(t["target"] for t in tasks).items())),
        _line("tasks by expert label", sorted(Counter(t["source"]["label"] for t in tasks).items())),
        _line("second reading", sorted(Counter(t["review"]["outcome"] for t in tasks).items())),
        _line("most frequent designs in the library", Counter(e["design"] for e in library).most_common(6)),
        f"- trajectories: {len(trajectories)}; {artifact} acquired an artifact, "
        f"{sum(bool(t.success) for t in trajectories)} succeeded.",
        _line("steps by mode", sorted(modes.items())),
        f"- projected final states: {last[len(last) // 2]:,} characters in the middle, {last[-1]:,} at most.",
        _line("frozen views", sorted(kinds.items())),
    ]
    return lines + recorded(len(trajectories), root)


def recorded(frozen, root=ROOT):
    """How far the recordings go: trajectories per section of the executed report, of all that are frozen."""
    lines = []
    for name in sorted(row.name for row in SECTIONS if row.plan and not row.part_of):
        path = root / "outputs" / "embedded" / f"{name}.csv"
        if path.exists():
            cohort = pd.read_csv(path).dropna(subset=["low"])["n_trajectories"].max()
            lines.append(f"- {name}: {int(cohort)} trajectories analysed of {frozen} frozen.")
    return lines


def updated(text, lines):
    """A card's text with the counted part replaced."""
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    return head + BEGIN + "\n" + "\n".join(lines) + "\n" + END + tail


def main():
    CARD.write_text(updated(CARD.read_text(encoding="utf-8"), counted()), encoding="utf-8")
    print(f"{CARD.name} is up to date.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
