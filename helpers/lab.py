"""The front door: what a notebook opens to get its profile's study, evaluators, answers and results.

``lab = Lab.open("02_retry", PROFILE, first=FIRST, …)``, then ask, measure, show. Every parameter of the notebook's cell is
handed over by name, so that all of them are checked here, in JupyterLab as well as under ``make``.
"""

import ast
import json
import os
import re
from functools import cached_property

import pandas as pd
from IPython import get_ipython

from helpers.asking.acquire import obtain
from helpers.asking.budget import Budget
from helpers.asking.generate import obtain_donors, obtain_views
from helpers.asking.record import Setting
from helpers.channels.plan import load_study
from helpers.channels.sections import SECTIONS, Evaluators
from helpers.channels.stacks import load_stacks
from helpers.channels.views import GENERATED
from helpers.measuring import cells as measured
from helpers.measuring.inference import DRAWS, TrajectoryDraws, interval
from helpers.reporting import figures, manifest, results
from helpers.reporting.params import (
    ROOT,
    ParameterError,
    assigned,
    check_values,
    merged,
    notebook_source,
    parameters_cell,
    refuse_unknown,
)
from helpers.study.tasks import load_library

_RUN = "ASV_RUN"  # what a run under `make` hands to its kernel: settings from the command line, and the folder to write to


class Lab:
    """A notebook's study, evaluators, answers and results.

    Attributes
    ----------
    settings : params.Settings of the profile; paths are taken from the repository's root
    values : dict of the notebook's parameters
    stacks : dict of name to Stack; ``stack`` and ``second`` are the evaluators in use (``second`` may be None)
    study : Study; after :meth:`ask` with the views that were generated
    results : Results, the section's table
    output : path of the folder that tables and figures go to; None for a command, which shows nothing
    budget : Budget of the run, for views and answers together
    """

    def __init__(self, notebook, values, settings, output, *, root=ROOT):
        self.notebook, self.values, self.settings, self.root = notebook, values, settings, root
        self.section = next((s for s in SECTIONS if s.name == notebook), None)
        self.acquire = values.get("ACQUIRE") or settings.ACQUIRE
        self.stacks = load_stacks()
        self.stack = self.stacks[values.get("STACK") or settings.STACK]
        second = values.get("SECOND_STACK") or settings.SECOND_STACK
        self.second = self.stacks[second] if second else None
        self.budget = Budget(settings.BUDGET, settings.BUDGET_MONEY)
        self.method = values.get("INTERVAL", "percentile")
        self.output = output and results.output_folder(output)
        prefix = self.section.prefix if self.section else ""
        self.results = results.Results(results.paper_numbers(self.path("PAPER")), notebook, prefix, self.method, settings.LEVEL)
        figures.use_style()

    @classmethod
    def open(cls, notebook, profile, *, root=ROOT, **values):
        """Open a notebook's lab on a profile; ``values`` are all other parameters of its cell, by lower-case name.

        A run whose values differ from the profile's writes to a folder of its own under ``outputs/tweaked/``, so that
        trying something never changes the report.

        Raises
        ------
        ParameterError for a profile, a name, a type or a value that does not fit; it says which ones do.
        """
        values = {"PROFILE": profile, **{name.upper(): value for name, value in values.items()}}
        run = json.loads(os.environ.get(_RUN, "null"))
        known = assigned(parameters_cell(notebook_source(notebook, root)))
        refuse_unknown(_typed(), known, notebook)
        check_values(values, known, notebook)
        usual, settings = merged(profile, notebook, (run or {}).get("settings"), root=root)
        output = run["folder"] if run else manifest.folder_for(notebook, usual | values, settings, usual, root)
        for name in sorted(values.keys() & usual.keys()):
            if not run and values[name] != usual[name]:
                print(f"{name} = {values[name]!r} here; the profile has {usual[name]!r}.")
        if notebook_source(notebook, root).parent.name == "tools":
            output = f"{output}/tools"
        if manifest.is_tweaked(output):
            print(f"These values differ from the report's, so everything is written to {output}.")
        return cls(notebook, values, settings, root / output, root=root)

    # -- the frozen study -----------------------------------------------------------------------------

    def path(self, name):
        """A path of the profile by its setting's name, under the repository's root."""
        return self.root / getattr(self.settings, name)

    @cached_property
    def study(self):
        """The profile's frozen study, its first ``FIRST`` trajectories where the notebook has such a parameter."""
        views = self.path("VIEWS")
        if not views.exists():
            print(f"{self.settings.VIEWS}: not there yet, so no generated view is frozen.")
        places = self.path("TASKS"), self.path("TRAJECTORIES"), views if views.exists() else None
        return load_study(*places, first=self.values.get("FIRST"))

    @cached_property
    def library(self):
        """What the actor may retrieve: a list of entries."""
        return load_library(self.path("LIBRARY"))

    @cached_property
    def evaluators(self):
        """Names of the stacks that plans ask; ``warm`` is the evaluator at another sampling temperature."""
        main = self.stack
        warm = (n for n, s in self.stacks.items() if s.identity == main.identity and s.sampling != main.sampling)
        return Evaluators(main.name, self.second and self.second.name, next(warm, None))

    def recording(self, waves=(0,)):
        """What ``make record`` and ``make plan`` work on: this profile's study, evaluators and places."""
        return Setting(self.study, self.stacks, self.evaluators, self.path("RECORDINGS"), self.path("VIEWS"), waves)

    # -- asking ---------------------------------------------------------------------------------------

    async def ask(self, plan=None, *, section=None, waves=None, views=None, pairs=None):
        """The answers to a section's plan, as Cells; a live run generates its views and asks what is missing first.

        Parameters
        ----------
        plan : DataFrame, optional; the section's own plan without it
        section : Section, optional; the notebook's own without it
        waves : sequence of int, optional; those of the section without it
        views : kinds of views that the plan reads, where they are not the section's
        pairs : set of (trajectory_id, state), optional; only their views are wanted
        """
        section = section or self.section
        plan = self._plan(section, waves) if plan is None else plan
        await self._views(section.views if views is None else views, section.states, pairs)
        plan, table = await obtain(
            plan, self.study, self.stacks, self.path("RECORDINGS"), acquire=self.acquire, section=section.name,
            order=self.stack.interleaved if section.interleaved else None, budget=self.budget,
        )  # fmt: skip
        return measured.read_cells(plan, table)

    async def recorded(self, plan=None, *, waves=None):
        """What is recorded of a plan, as Cells; nothing is asked."""
        plan = self._plan(self.section, waves) if plan is None else plan
        return measured.read_cells(*await obtain(plan, self.study, self.stacks, self.path("RECORDINGS")))

    def _plan(self, section, waves):
        if not section.possible(self.evaluators):
            raise ParameterError(f"{section.name} asks two evaluators, and the profile has one; set SECOND_STACK, or leave "
                                 f"{self.notebook} out.")  # fmt: skip
        return section.plan(list(self.study.trajectories), self.evaluators, waves or section.waves)

    async def _views(self, kinds, states, pairs):
        if self.acquire == "recorded":
            return
        made = [kind for kind in kinds if kind in GENERATED]
        self.study = await obtain_views(
            self.study, made, states, path=self.path("VIEWS"), stack=self.stack, acquire=self.acquire,
            recordings=self.path("RECORDINGS"), budget=self.budget, pairs=pairs,
        )  # fmt: skip
        if "donor" in kinds:
            self.study = await obtain_donors(self.study, self.path("VIEWS"), acquire=self.acquire)

    # -- measuring ------------------------------------------------------------------------------------

    def completeness(self, cells, *, may_be_empty=False):
        """Planned, returned and complete cells per channel, and why the others are missing."""
        return measured.completeness(cells, may_be_empty=may_be_empty)

    def draws(self, trajectory_ids):
        """The section's bootstrap draws over some trajectories."""
        return TrajectoryDraws(trajectory_ids, self.values.get("DRAWS", DRAWS), self.settings.SEED)

    def interval(self, replicates, n=None, point=None):
        """Interval of replicates by the section's method and level; see :func:`helpers.measuring.inference.interval`."""
        return interval(replicates, self.settings.LEVEL, method=self.method, n=n, point=point)

    # -- showing --------------------------------------------------------------------------------------

    def show(self, figure, name, alt):
        """Save a figure as PNG and PDF and show it with its alternative text."""
        figures.show_figure(figure, self.output / "figures" / name, alt)

    def save(self, frame, name):
        """Write a table beside the section's own; ``name`` begins with the notebook's number."""
        frame.to_csv(self.output / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")

    def finding(self, text, n=None, unit="trajectories"):
        """Show a computed sentence; ``n`` is the smallest number of resampled units behind its intervals."""
        results.finding(text, n, self.method, unit)

    def write(self, *, complete=True):
        """Write the section's exact table and return it for reading; ``complete``: every published quantity must be in it."""
        missing = self.results.unreported() if complete else []
        if missing:
            raise AssertionError(f"published quantities without a row: {', '.join(missing)}")
        return self.results.write(self.output)

    def table(self, name):
        """Another notebook's table, indexed by id: the one beside this notebook's, else the report's; empty without either."""
        places = [folder / f"{name}.csv" for folder in (self.output, self.path("OUTPUT"))]
        found = next((path for path in places if path.exists()), None)
        return pd.read_csv(found).set_index("id") if found else pd.DataFrame(columns=results.COLUMNS).set_index("id")

    def colophon(self, *cells):
        """Versions, evaluators and how many recordings were used: those of some Cells, else of none."""
        asked = dict.fromkeys(name for part in cells for name in part.plan["stack"].unique()) or {self.stack.name: None}
        return results.colophon([self.stacks[name] for name in asked], *((part.plan, part.table) for part in cells))


def setting_of(profile, first=None, root=ROOT):
    """What a command works on: a profile's study, evaluators, places, and how many waves its bridge has."""
    values, settings = merged(profile, "05_bridge", {"FIRST": first or 0}, root=root)
    lab = Lab("05_bridge", values, settings, None, root=root)
    return lab.recording(tuple(range(values["WAVES"])))


def _typed():
    """Names that the parameters cell sets as it was last run in this kernel; empty outside of a notebook."""
    shell = get_ipython()
    cells = [c for c in (shell.user_ns.get("In") or [] if shell else []) if re.search(r"^PROFILE\s*:", c, re.MULTILINE)]
    nodes = ast.parse(cells[-1]).body if cells else []
    targets = [t for n in nodes for t in (n.targets if isinstance(n, ast.Assign) else [getattr(n, "target", None)])]
    return [t.id for t in targets if isinstance(t, ast.Name)]
