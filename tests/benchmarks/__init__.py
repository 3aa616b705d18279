"""Benchmarks: figures of one run side by side. ``python -m tests.benchmarks`` (``make bench``) prints and writes them.

Where it can be, a figure is a ratio within the run, so that it says the same on a slow machine and a busy one.
"""

import math
from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Figure:
    """One figure of the table. ``goal`` reads ``">= 400"`` or ``"<= 1.1"``; empty where nothing is promised."""

    name: str
    value: float
    unit: str
    goal: str = ""

    @property
    def reached(self):
        """True or False; None where there is no goal or no value."""
        if not self.goal or math.isnan(self.value):
            return None
        sign, bound = self.goal.split()
        return self.value >= float(bound) if sign == ">=" else self.value <= float(bound)


def as_frame(figures):
    """Figures as the table that is printed and written: name, value, unit, goal, reached."""
    said = {True: "yes", False: "no", None: ""}
    return pd.DataFrame([{"name": f.name, "value": f.value, "unit": f.unit, "goal": f.goal, "reached": said[f.reached]}
                         for f in figures])  # fmt: skip
