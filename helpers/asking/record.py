"""Record the study: views and evaluator answers, section by section, trajectory by trajectory.

``python -m helpers.asking.record plan``   what is planned, recorded and still to ask, with tokens, money and time
``python -m helpers.asking.record run``    generate missing views and ask what is missing; stop and go on at any time
``python -m helpers.asking.record verify`` ask a hash-drawn sample again and compare
"""

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from helpers.asking.acquire import ask_missing, one_currency
from helpers.asking.budget import Budget
from helpers.asking.faults import RunStopped
from helpers.asking.forecast import forecasts, print_plan, section_ids
from helpers.asking.generate import obtain_donors, obtain_views
from helpers.asking.recordings import Recordings
from helpers.asking.verify import verify
from helpers.channels import sections
from helpers.channels.plan import add_keys, load_study
from helpers.channels.stacks import StackError, load_stacks
from helpers.channels.views import ENDPOINTS, GENERATED
from helpers.reporting.params import PARAMS, ROOT, ParameterError, load_profile, profiles, read_values
from helpers.study.files import DataError


@dataclass(frozen=True)
class Section:
    """One section's part of the recording: how its plan is made and which frozen views it reads."""

    name: str
    plan: callable
    kinds: tuple = ()
    states: tuple = ENDPOINTS
    first: int | None = None  # record the first so many trajectories of the file; None is all
    order: str | None = None


def recording_order(stack, second, warm=None, interleaved="prefix-groups"):
    """Sections in the order in which they are recorded, so that a partial recording is useful.

    ``warm`` is the evaluator at another sampling temperature, for the check of section 1; None leaves it out.
    ``interleaved`` is the order of the sections whose waves must not line up with time.
    """
    short, long = ("generated-128",), ("ungrounded-512", "source-only-512")
    check = Section("01_temperature", lambda ids: sections.temperature_check(ids, warm), short, first=2)
    return [
        Section("04_matched_cube", lambda ids: sections.matched_cube(ids, stack), short),
        Section("06_source_only", lambda ids: sections.source_only(ids, stack), long),
        Section("05_bridge", lambda ids: sections.bridge(ids, stack, second), short),
        Section("05_bridge_wave_2", lambda ids: sections.bridge(ids, stack, second, waves=(1,)), short, first=6,
                order=interleaved),
        Section("03_retrieval_face", lambda ids: sections.retrieval_face(ids, stack), short),
        Section("01_global_replay", lambda ids: sections.global_replay(ids, stack), short, sections.ALL_STATES),
        *([check] if warm else []),
        Section("02_retry", lambda ids: sections.retry(ids, stack), short, sections.ALL_STATES, 30, interleaved),
        Section("A1_controls", lambda ids: sections.controls(ids, stack), (*short, "donor"), first=30),
        Section("07_step_diagnostics", lambda ids: sections.step_diagnostics(ids, stack), ("rationale-128",),
                sections.ALL_STATES),
    ]  # fmt: skip


@dataclass
class Setting:
    """What a profile's ``common.yml`` says about data and evaluators, read once."""

    common: dict
    stacks: dict
    bridge_waves: int = 1

    @classmethod
    def of(cls, profile):
        """Read a profile; ParameterError lists the profiles that exist."""
        if profile not in profiles():
            raise ParameterError(f"no profile {profile!r}; there are {', '.join(profiles())}.")
        waves = load_profile(profile, "05_bridge").get("WAVES", 1)
        return cls(read_values(PARAMS / profile / "common.yml"), load_stacks(), waves)

    def study(self, first=None):
        """The profile's frozen inputs."""
        c = self.common
        return load_study(ROOT / c["TASKS"], ROOT / c["TRAJECTORIES"], ROOT / c["VIEWS"], first=first)

    def chosen(self, names):
        """The sections to record, all of them when no name is given.

        Only the embedded evaluator, which takes hours, records some sections and the second wave of the bridge for the
        first trajectories alone.
        """
        stack, second = self.common["STACK"], self.common.get("SECOND_STACK")
        main = self.stacks[stack]
        warm = (n for n, s in self.stacks.items() if s.identity == main.identity and s.sampling != main.sampling)
        every = recording_order(stack, second, next(warm, None), main.interleaved)
        if not second:  # a bridge leads to a second evaluator
            every = [s for s in every if not s.name.startswith("05_bridge")]
        if main.kind != "embedded":
            waves = tuple(range(self.bridge_waves))
            bridge = lambda ids: sections.bridge(ids, stack, second, waves)  # noqa: E731
            every = [replace(s, first=None) for s in every if s.name != "05_bridge_wave_2"]
            every = [replace(s, plan=bridge) if s.name == "05_bridge" else s for s in every]
        if not names:
            return every
        unknown = set(names) - {s.name for s in every}
        if unknown:
            raise ParameterError(f"no section {sorted(unknown)}; there are {', '.join(s.name for s in every)}.")
        return [s for s in every if s.name in names]

    def store(self, name):
        """The recordings of one stack."""
        return Recordings(ROOT / self.common["RECORDINGS"], name)




# -- run --------------------------------------------------------------------------------------------


async def record(setting, names=(), *, first=None, budget=None, progress=True):
    """Generate views and ask what is missing, one trajectory after the other within each section.

    ``budget`` limits calls and money over all sections, with the views that each of them needs first.
    """
    budget = budget or Budget()
    study = setting.study(first)
    for section in setting.chosen(names):
        study = await obtain_views_of(section, study, setting, budget, progress)
        plan = add_keys(section.plan(section_ids(section, study)), study, setting.stacks)
        one_currency([setting.stacks[name] for name in plan["stack"].unique()], budget)
        for name in dict.fromkeys(plan["stack"]):
            written = await ask_missing(
                plan, study, setting.stacks[name], setting.store(name), section=section.name, order=section.order,
                budget=budget, progress=progress,
            )  # fmt: skip
            print(f"{section.name}: {written} answers by {name}.", flush=True)


async def obtain_views_of(section, study, setting, budget, progress):
    """The study with every generated view that a section reads."""
    few = {t: study.trajectories[t] for t in section_ids(section, study)}
    part = replace(study, trajectories=few)
    kinds = [k for k in section.kinds if k in GENERATED]
    path = ROOT / setting.common["VIEWS"]
    done = await obtain_views(
        part, kinds, section.states, path=path, stack=setting.stacks[setting.common["STACK"]], acquire="missing",
        recordings=ROOT / setting.common["RECORDINGS"], budget=budget, progress=progress,
    )  # fmt: skip
    if "donor" in section.kinds:
        done = await obtain_donors(done, path, acquire="missing")
    return replace(study, views=study.views | done.views)


def export(setting):
    """Write the Parquet file of every stack that has a journal."""
    for name in setting.stacks:
        store = setting.store(name)
        if store.journal.exists():
            print(f"{store.parquet.name}: {store.export():,} recordings.")


# -- verify -----------------------------------------------------------------------------------------


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1 is needed")
    return number


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m helpers.asking.record", description=__doc__)
    parser.add_argument("action", choices=["plan", "run", "verify", "export"])
    parser.add_argument("--profile", default="embedded")
    parser.add_argument("--sections", nargs="*", default=[])
    parser.add_argument("--first", type=_positive, default=None, help="only the first so many trajectories")
    parser.add_argument("--calls", type=int, default=None, help="run: most calls, for views and answers")
    parser.add_argument("--money", type=float, default=None, help="run: most money, in the prices' currency")
    parser.add_argument("--count", type=_positive, default=64, help="verify: cells to ask again")
    options = parser.parse_args(arguments)
    try:
        setting = Setting.of(options.profile)
        if options.action == "plan":
            study = setting.study(options.first)
            print_plan(forecasts(setting.chosen(options.sections), study, setting), setting)
        elif options.action == "run":
            try:
                budget = Budget(options.calls, options.money)
                asyncio.run(record(setting, options.sections, first=options.first, budget=budget))
            finally:
                export(setting)
        elif options.action == "export":
            export(setting)
        else:
            outcome = asyncio.run(verify(setting, options.count, first=options.first))
            path = ROOT / setting.common["OUTPUT"] / "verify.json"
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(outcome, indent=1) + "\n")
            print("\n".join(f"{k}: {v:.4g}" if isinstance(v, float) else f"{k}: {v}" for k, v in outcome.items()))
    except (DataError, StackError, ParameterError, RunStopped, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; everything answered so far is recorded, and the same command goes on from here.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
