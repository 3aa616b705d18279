"""Record the study: views and evaluator answers, section by section, trajectory by trajectory.

``python -m helpers.record plan``   what is planned, recorded and still to ask, with tokens, money and time
``python -m helpers.record run``    generate missing views and ask what is missing; stop and go on at any time
``python -m helpers.record verify`` ask a hash-drawn sample again and compare
"""

import argparse
import asyncio
import json
import os
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from os.path import commonprefix
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from helpers import sections
from helpers.acquire import ask_missing, one_currency
from helpers.budget import Budget
from helpers.client import RunStopped, client_for
from helpers.evaluator import Acquisition, missing_cells
from helpers.freeze import obtain_donors, obtain_views
from helpers.params import PARAMS, ROOT, ParameterError, load_profile, profiles, read_values
from helpers.plan import CELL, add_keys, cell_messages, in_order, load_study, short_hash
from helpers.probe import CALLS as PROBE_CALLS
from helpers.probe import refusal, saved_probe
from helpers.recordings import Recordings
from helpers.reducers import endpoint_margins, read_cells
from helpers.stacks import StackError, load_stacks
from helpers.tasks import DataError
from helpers.views import ENDPOINTS, GENERATED, view_id, view_messages, wanted_views

CHARACTERS_PER_TOKEN = 4.0  # until a stack's own recordings say better
MEASURED_CELLS = 400  # recorded prompts that are measured at most
UNSEEN_TOKENS, UNSEEN_SHARE = 600, 0.35  # of a prompt whose view does not exist yet: size, part new to the cache


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


def section_ids(section, study):
    """The trajectories that a section is recorded for."""
    return list(study.trajectories)[: section.first]


# -- plan -------------------------------------------------------------------------------------------


def fresh_share(prompts):
    """Share of all prompt characters that do not repeat the beginning of the prompt before.

    In sorted order that is the size of the tree of prefixes: each branch counts once.
    """
    total = sum(map(len, prompts))
    return 1 - sum(len(commonprefix(pair)) for pair in pairwise(prompts)) / total if total else 1.0


def prompt_text(row, study):
    """All characters of a cell's prompt; None where its view has not been frozen."""
    messages = cell_messages(row, study)
    return None if messages is None else "".join(m["content"] for m in messages)


@dataclass(frozen=True)
class Counting:
    """How prompt tokens of a stack are counted: characters a token, and the recorded cells that say so (0: a guess)."""

    characters: float = CHARACTERS_PER_TOKEN
    cells: int = 0

    @property
    def note(self):
        """What a reader is told about a count."""
        return f"measured, {self.characters:.2f} characters a token" if self.cells else "estimated"


def measured_counting(plan, study, table, most=MEASURED_CELLS):
    """Counting of one stack from those of a plan's cells that are recorded with their prompt tokens.

    Parameters
    ----------
    plan : keyed DataFrame of one stack
    table : Arrow table of its recordings with ``key`` and ``prompt_tokens``
    most : int, cells that are looked at, spread evenly over the plan
    """
    tokens = dict(zip(table["key"].to_pylist(), table["prompt_tokens"].to_pylist(), strict=True))
    rows = [row for row in plan.itertuples(index=False) if tokens.get(row.key)]
    rows = rows[:: -(-len(rows) // most)] if rows else []
    characters = sum(len(prompt_text(row, study)) for row in rows)
    return Counting(characters / sum(tokens[row.key] for row in rows), len(rows)) if rows else Counting()


def forecasts(chosen, study, setting):
    """Rows of :func:`forecast` for several sections; what one has recorded tells the others' tokens too."""
    plans = [add_keys(section.plan(section_ids(section, study)), study, setting.stacks) for section in chosen]
    every = pd.concat(plans, ignore_index=True)
    counting, speed = {}, {}
    for name, part in every.groupby("stack", sort=False):
        table = setting.store(name).table(["key", "prompt_tokens", "cached_tokens", "seconds"])
        counting[name] = measured_counting(part.drop_duplicates("key"), study, table)
        speed[name] = measured_speed(table)
    generator, counted, rows = setting.stacks[setting.common["STACK"]], set(), []
    for section, plan in zip(chosen, plans, strict=True):
        rows += view_forecast(section, study, generator, counting.get(generator.name, Counting()), counted)
        rows += forecast(section, plan, study, setting, counting=counting, speed=speed)
    return rows


def measured_speed(table):
    """Uncached prompt tokens that a stack's recordings took a second, all else of a call included; None without any."""
    fresh = pc.sum(pc.subtract(table["prompt_tokens"], table["cached_tokens"])).as_py()
    seconds = pc.sum(table["seconds"]).as_py()
    return fresh / seconds if fresh and seconds else None


def expected_seconds(stack, *, calls, tokens, fresh, measured):
    """How long calls will take: at the measured speed of a stack of this machine, else at the speeds of its file.

    An endpoint elsewhere answers many calls at a time, so what one took says little about the next thousand.
    """
    declared = stack.tokens_per_s
    if stack.kind != "embedded":
        return tokens / declared["prompt"]
    if measured:
        return fresh / measured
    return fresh / declared["prompt"] + calls / declared["completion"]


def forecast(section, plan, study, setting, *, counting, speed):
    """One row a stack: calls, tokens, money and time that a section still needs.

    Parameters
    ----------
    plan : the section's keyed plan
    counting : dict of stack name to Counting
    speed : dict of stack name to :func:`measured_speed`
    """
    rows = []
    for name in dict.fromkeys(plan["stack"]):
        stack, part = setting.stacks[name], plan[plan["stack"] == name].drop_duplicates(list(CELL))
        part = part[part["key"].isna() | ~part["key"].duplicated()]  # one question may stand for several cells
        recorded = part["key"].isin(setting.store(name).keys())
        todo = part[~recorded]
        grouped = stack.kind == "embedded" and section.order == "prefix-groups"
        tokens, fresh, note = prompt_tokens(todo, study, counting[name], grouped=grouped)
        seconds = expected_seconds(stack, calls=len(todo), tokens=tokens, fresh=fresh, measured=speed[name])
        rows.append(
            {
                "section": section.name, "stack": name, "planned": len(part), "recorded": int(recorded.sum()), "to ask": len(todo),
                "prompt tokens": round(tokens), "counted": note, "of them new to the cache": round(fresh),
                **prices(tokens, fresh, len(todo) * stack.sampling["max_tokens"], stack), "minutes": round(seconds / 60, 1),
                "speed": "measured" if stack.kind == "embedded" and speed[name] else "declared",
            }
        )  # fmt: skip
    return rows


def view_forecast(section, study, stack, counting, counted):
    """At most one row: the texts that a section's generated views still need, each at the mean length of its kind.

    Parameters
    ----------
    stack : Stack, the generator
    counting : its Counting
    counted : set of view ids that an earlier section's row holds; this section's are added
    """
    trajectories = [study.trajectories[name] for name in section_ids(section, study)]
    wanted = wanted_views(trajectories, [k for k in section.kinds if k in GENERATED], section.states)
    wanted = {view_id(t.trajectory_id, state, kind): (t, state, kind) for t, state, kind in wanted}
    todo = [w for name, w in wanted.items() if name not in study.views and name not in counted]
    counted |= set(wanted)
    if not todo:
        return []
    prompts = [view_messages(study.task(t.trajectory_id), study.states[t.trajectory_id][state], GENERATED[kind])
               for t, state, kind in todo]  # fmt: skip
    tokens = sum(len(m["content"]) for messages in prompts for m in messages) / counting.characters
    mean = {kind: mean_view_tokens(kind, study, counting) for kind in {kind for _, _, kind in todo}}
    answers = sum(mean[kind] for _, _, kind in todo)
    speed = stack.tokens_per_s
    return [
        {
            "section": f"views of {section.name}", "stack": stack.name, "planned": len(wanted),
            "recorded": len(set(wanted) & set(study.views)), "to ask": len(todo), "prompt tokens": round(tokens),
            "counted": f"{counting.note}, and {answers:,.0f} of answers", "of them new to the cache": round(tokens),
            **prices(tokens, tokens, answers, stack),
            "minutes": round((tokens / speed["prompt"] + answers / speed["completion"]) / 60, 1), "speed": "declared",
        }
    ]  # fmt: skip


def mean_view_tokens(kind, study, counting):
    """Tokens that a view of a kind is expected to have: the mean of the frozen ones, else the most it may have."""
    lengths = [len(text) for name, text in study.views.items() if name.endswith(f"/{kind}")]
    return np.mean(lengths) / counting.characters if lengths else GENERATED[kind]["max_tokens"]


def prompt_tokens(todo, study, counting, *, grouped=False):
    """Prompt tokens of cells, those of them that no cached prefix covers, and how they were counted.

    ``grouped``: they are asked in interleaved groups to a server that keeps the last prompt alone.
    """
    if not len(todo):
        return 0, 0, ""
    if grouped:
        todo = todo.iloc[in_order(todo, study, "prefix-groups")]
    prompts = [p for row in todo.itertuples(index=False) if (p := prompt_text(row, study)) is not None]
    if not prompts:
        tokens, share = len(todo) * UNSEEN_TOKENS, UNSEEN_SHARE
        note = f"estimated, {UNSEEN_TOKENS} a prompt, no view yet"
    else:
        tokens = len(todo) * sum(map(len, prompts)) / len(prompts) / counting.characters
        share, note = fresh_share(prompts if grouped else sorted(prompts)), counting.note
        note += f", {len(todo) - len(prompts)} without their view at the mean" if len(prompts) < len(todo) else ""
    return tokens, tokens * share, note


def prices(tokens, fresh, generated, stack):
    """Money at list price, with cached input, and by the batch service, each in the price's currency.

    Generated tokens are priced at the list price throughout: the file holds no batch price of output.
    """
    price, answers = stack.price, generated * stack.price["output"]
    return {
        "list": round((tokens * price["input"] + answers) / 1e6, 2),
        "cached input": round((fresh * price["input"] + (tokens - fresh) * price["cached_input"] + answers) / 1e6, 2),
        "batch": round((tokens * price["batch"] + answers) / 1e6, 2),
        "currency": price["currency"],
    }


def stack_notes(names, setting):
    """One sentence a stack: what its probe found, and where its prices come from."""
    lines = []
    for name in names:
        stack, store = setting.stacks[name], setting.store(name)
        found = saved_probe(store.parquet.parent, stack)
        reason = found and refusal(found, stack)
        probed = f"not probed yet, which takes {PROBE_CALLS} calls" if not found else f"its probe refuses it: {reason}"
        if found and not reason:
            scaled = {True: "yes", False: "no", None: "unclear"}[found["scaled_by_temperature"]]
            probed = (f"probed: {found['alternatives']} alternatives, every label one token, scaled by the "
                      f"temperature: {scaled}, answered by {found['returned_model']}")  # fmt: skip
        price = stack.price
        if stack.key_variable and not os.environ.get(stack.key_variable):
            probed += f"; {stack.key_variable}, which holds its key, is not set"
        lines.append(f"{name}: {probed}. Prices a million tokens of {price.get('date')}: {price.get('source')}.")
    return lines


def print_plan(rows, setting):
    """Print the forecast, its totals by currency, and the stacks' notes."""
    frame = pd.DataFrame(rows)
    print(frame.to_string(index=False))
    money = [f"{part['list'].sum():.2f} {currency} at list price ({part['cached input'].sum():.2f} with cached input, "
             f"{part['batch'].sum():.2f} by batch)" for currency, part in frame.groupby("currency")]  # fmt: skip
    print(f"\nin all: {frame['to ask'].sum():,} calls, about {frame['minutes'].sum():.0f} minutes, {'; '.join(money)}.")
    print(f"Estimated prompt tokens are counted at {CHARACTERS_PER_TOKEN:g} characters each; measured ones by what "
          "recorded prompts of the stack took.")  # fmt: skip
    if "07_step_diagnostics" in set(frame["section"]):
        print("Not counted: the component audit of 07_step_diagnostics, which chooses its transitions by what is recorded "
              "first, and the actor's own calls in notebooks 08 and 09; these notebooks ask with ACQUIRE=missing.")  # fmt: skip
    print("\n".join(stack_notes(list(dict.fromkeys(frame["stack"])), setting)))


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


async def verify(setting, count, *, first=None, progress=True):
    """Ask a hash-drawn sample of recorded cells again and compare.

    Whole endpoints (a state under a channel, all its layouts) are drawn, so that gains can be compared too.
    Nothing is written to the recordings.

    Returns
    -------
    dict: cells, mean and largest absolute difference of a label log-probability (nats), gains and their sign agreement
    """
    study = setting.study(first)
    name = setting.common["STACK"]
    stack, store = setting.stacks[name], setting.store(name)
    plan = add_keys(sections.global_replay(list(study.trajectories), name), study, setting.stacks)
    table = store.table()
    plan = plan[plan["key"].isin(store.keys())]
    if plan.empty:
        raise DataError(f"{store.parquet}: nothing recorded for {name} to verify.")
    sample = draw_transitions(plan, count)
    with TemporaryDirectory() as folder:
        scratch = Recordings(Path(folder), name)
        async with client_for(stack) as client:
            cells = missing_cells(sample, study, stack, scratch, section="verify")
            await Acquisition(scratch, stack, client, progress=progress).run(cells)
        return compare(sample, study, table, scratch.table())


def draw_transitions(plan, count):
    """Cells of hash-drawn transitions (both states under one channel), at least ``count`` cells."""
    chosen, order = [], {}
    for key, part in plan.groupby(["trajectory_id", "template"], sort=False):
        for state in sorted(part["state"].unique())[:-1]:
            order[short_hash([*key, int(state)])] = part[part["state"].isin([state, state + 1])].index
    for digest in sorted(order):
        chosen = sorted(set(chosen) | set(order[digest]))
        if len(chosen) >= count:
            break
    return plan.loc[chosen]


def compare(sample, study, recorded, fresh):
    """How far two recordings of the same cells lie apart."""
    old, new = read_cells(sample, recorded)[0], read_cells(sample, fresh)[0]
    apart = np.abs(old - new)
    gains = []
    for table in (recorded, fresh):
        ends = endpoint_margins(sample, study, table).set_index(["trajectory_id", "template", "state"])["margin"]
        gains.append((ends - ends.rename(lambda state: state + 1, level="state")).dropna())
    both = pd.concat(gains, axis=1, join="inner").to_numpy()
    agree = np.sign(both[:, 0]) == np.sign(both[:, 1])
    return {
        "cells": len(sample),
        "log-probabilities compared": int(np.isfinite(apart).sum()),
        "mean difference (nats)": float(np.nanmean(apart)),
        "largest difference (nats)": float(np.nanmax(apart)),
        "gains compared": len(agree),
        "gain signs that agree": int(agree.sum()),
        "largest gain difference (nats)": float(np.abs(both[:, 0] - both[:, 1]).max()) if len(both) else None,
    }


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1 is needed")
    return number


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m helpers.record", description=__doc__)
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
