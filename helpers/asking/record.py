"""Record a study: generate the views that are missing and ask what is not recorded, section by section."""

from dataclasses import dataclass, replace
from pathlib import Path

from helpers.asking.acquire import ask_missing, one_currency
from helpers.asking.budget import Budget
from helpers.asking.generate import obtain_donors, obtain_views
from helpers.asking.recordings import Recordings
from helpers.channels.plan import Study, add_keys
from helpers.channels.sections import SECTIONS, Evaluators
from helpers.channels.views import GENERATED


@dataclass
class Setting:
    """What is recorded, by whom, and where it goes.

    ``waves`` holds the waves of the bridge where another number of them is wanted than the registry says.
    """

    study: Study
    stacks: dict
    evaluators: Evaluators
    recordings: Path
    views: Path
    waves: tuple = (0,)

    @property
    def main(self):
        """The evaluator that most sections ask, which writes the views, too."""
        return self.stacks[self.evaluators.stack]

    def store(self, name):
        """The recordings of one stack."""
        return Recordings(self.recordings, name)

    def chosen(self, names=()):
        """Rows of the registry to record, all that this setting can when no name is given.

        Only the embedded evaluator, which takes hours, records some of them for the first trajectories alone, and the
        bridge's second wave by itself. ValueError lists the names that exist.
        """
        rows = [s for s in SECTIONS if s.plan and s.recorded != 0 and s.possible(self.evaluators)]
        if self.main.kind != "embedded":
            rows = [replace(s, recorded=None) for s in rows if s.name != "05_bridge_wave_2"]
            rows = [replace(s, waves=self.waves) if s.name == "05_bridge" else s for s in rows]
        unknown = sorted(set(names) - {s.name for s in rows})
        if unknown:
            raise ValueError(f"no section {', '.join(unknown)}; there are {', '.join(s.name for s in rows)}.")
        return [s for s in rows if s.name in names or not names]

    def ids(self, section):
        """The trajectories that a section is recorded for."""
        return list(self.study.trajectories)[: section.recorded]

    def plan(self, section):
        """A section's keyed plan."""
        return add_keys(section.plan(self.ids(section), self.evaluators, section.waves), self.study, self.stacks)

    def order(self, section):
        """How a section's requests are ordered; None leaves it to the stack."""
        return self.main.interleaved if section.interleaved else None


async def record(setting, names=(), *, budget=None, progress=True):
    """Generate views and ask what is missing, one trajectory after the other within each section.

    ``budget`` limits calls and money over all sections, with the views that each of them needs first.
    """
    budget = budget or Budget()
    for section in setting.chosen(names):
        setting.study = await _with_views(section, setting, budget, progress)
        plan = setting.plan(section)
        one_currency([setting.stacks[name] for name in plan["stack"].unique()], budget)
        for name in dict.fromkeys(plan["stack"]):
            written = await ask_missing(
                plan, setting.study, setting.stacks[name], setting.store(name), section=section.name,
                order=setting.order(section), budget=budget, progress=progress,
            )  # fmt: skip
            print(f"{section.name}: {written} answers by {name}.", flush=True)


async def _with_views(section, setting, budget, progress):
    """The study with every view that a section reads."""
    study = setting.study
    part = replace(study, trajectories={name: study.trajectories[name] for name in setting.ids(section)})
    part = await obtain_views(
        part, [k for k in section.views if k in GENERATED], section.states, path=setting.views, stack=setting.main,
        acquire="missing", recordings=setting.recordings, budget=budget, progress=progress,
    )  # fmt: skip
    if "donor" in section.views:
        part = await obtain_donors(part, setting.views, acquire="missing")
    return replace(study, views=study.views | part.views)


def export(setting):
    """Write the Parquet file of every stack that has a journal."""
    for store in map(setting.store, setting.stacks):
        if store.journal.exists():
            print(f"{store.parquet.name}: {store.export():,} recordings.")
