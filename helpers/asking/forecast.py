"""What a recording will cost before it starts: calls, tokens, money and time."""

import os
from dataclasses import dataclass
from itertools import pairwise
from os.path import commonprefix

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from helpers.asking.probe import CALLS as PROBE_CALLS
from helpers.asking.probe import refusal, saved_probe
from helpers.channels.plan import CELL, cell_messages, in_order
from helpers.channels.views import GENERATED, view_id, view_messages, wanted_views

_CHARACTERS_PER_TOKEN = 4.0  # until a stack's own recordings say better
_MEASURED_CELLS = 400  # recorded prompts that are measured at most
_UNSEEN_TOKENS, _UNSEEN_SHARE = 600, 0.35  # of a prompt whose view does not exist yet: size, part new to the cache


def _fresh_share(prompts):
    """Share of all prompt characters that do not repeat the beginning of the prompt before.

    In sorted order that is the size of the tree of prefixes: each branch counts once.
    """
    total = sum(map(len, prompts))
    return 1 - sum(len(commonprefix(pair)) for pair in pairwise(prompts)) / total if total else 1.0


def _prompt_text(row, study):
    """All characters of a cell's prompt; None where its view has not been frozen."""
    messages = cell_messages(row, study)
    return None if messages is None else "".join(m["content"] for m in messages)


@dataclass(frozen=True)
class _Counting:
    """How prompt tokens of a stack are counted: characters a token, and the recorded cells that say so (0: a guess)."""

    characters: float = _CHARACTERS_PER_TOKEN
    cells: int = 0

    @property
    def note(self):
        """What a reader is told about a count."""
        return f"measured, {self.characters:.2f} characters a token" if self.cells else "estimated"


def _measured_counting(plan, study, table, most=_MEASURED_CELLS):
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
    characters = sum(len(_prompt_text(row, study)) for row in rows)
    return _Counting(characters / sum(tokens[row.key] for row in rows), len(rows)) if rows else _Counting()


def forecasts(chosen, setting):
    """Rows of :func:`forecast` for several sections; what one has recorded tells the others' tokens too.

    Parameters
    ----------
    chosen : list of Section
    setting : record.Setting
    """
    study = setting.study
    plans = [setting.plan(section) for section in chosen]
    every = pd.concat(plans, ignore_index=True)
    counting, speed = {}, {}
    for name, part in every.groupby("stack", sort=False):
        table = setting.store(name).table(["key", "prompt_tokens", "cached_tokens", "seconds"])
        counting[name] = _measured_counting(part.drop_duplicates("key"), study, table)
        speed[name] = _measured_speed(table)
    counted, rows = set(), []
    for section, plan in zip(chosen, plans, strict=True):
        rows += _view_forecast(section, setting, counting.get(setting.main.name, _Counting()), counted)
        rows += forecast(section, plan, setting, counting=counting, speed=speed)
    return rows


def _measured_speed(table):
    """Uncached prompt tokens that a stack's recordings took a second, all else of a call included; None without any."""
    fresh = pc.sum(pc.subtract(table["prompt_tokens"], table["cached_tokens"])).as_py()
    seconds = pc.sum(table["seconds"]).as_py()
    return fresh / seconds if fresh and seconds else None


def _expected_seconds(stack, *, calls, tokens, fresh, measured):
    """How long calls will take: at the measured speed of a stack of this machine, else at the speeds of its file.

    An endpoint elsewhere answers many calls at a time, so what one took says little about the next thousand.
    """
    declared = stack.tokens_per_s
    if stack.kind != "embedded":
        return tokens / declared["prompt"]
    if measured:
        return fresh / measured
    return fresh / declared["prompt"] + calls / declared["completion"]


def forecast(section, plan, setting, *, counting, speed):
    """One row a stack: calls, tokens, money and time that a section still needs.

    Parameters
    ----------
    plan : the section's keyed plan
    counting : dict of stack name to Counting
    speed : dict of stack name to :func:`_measured_speed`
    """
    rows = []
    for name in dict.fromkeys(plan["stack"]):
        stack, part = setting.stacks[name], plan[plan["stack"] == name].drop_duplicates(list(CELL))
        part = part[part["key"].isna() | ~part["key"].duplicated()]  # one question may stand for several cells
        recorded = part["key"].isin(setting.store(name).keys())
        todo = part[~recorded]
        grouped = stack.kind == "embedded" and setting.order(section) == "prefix-groups"
        tokens, fresh, note = prompt_tokens(todo, setting.study, counting[name], grouped=grouped)
        seconds = _expected_seconds(stack, calls=len(todo), tokens=tokens, fresh=fresh, measured=speed[name])
        rows.append(
            {
                "section": section.name, "stack": name, "planned": len(part), "recorded": int(recorded.sum()), "to ask": len(todo),
                "prompt tokens": round(tokens), "counted": note, "of them new to the cache": round(fresh),
                **prices(tokens, fresh, len(todo) * stack.sampling["max_tokens"], stack), "minutes": round(seconds / 60, 1),
                "speed": "measured" if stack.kind == "embedded" and speed[name] else "declared",
            }
        )  # fmt: skip
    return rows


def _view_forecast(section, setting, counting, counted):
    """At most one row: the texts that a section's generated views still need, each at the mean length of its kind.

    Parameters
    ----------
    counting : Counting of the generator
    counted : set of view ids that an earlier section's row holds; this section's are added
    """
    study, stack = setting.study, setting.main
    trajectories = [study.trajectories[name] for name in setting.ids(section)]
    wanted = wanted_views(trajectories, [k for k in section.views if k in GENERATED], section.states)
    wanted = {view_id(t.trajectory_id, state, kind): (t, state, kind) for t, state, kind in wanted}
    todo = [w for name, w in wanted.items() if name not in study.views and name not in counted]
    counted |= set(wanted)
    if not todo:
        return []
    prompts = [view_messages(study.task(t.trajectory_id), study.states[t.trajectory_id][state], GENERATED[kind])
               for t, state, kind in todo]  # fmt: skip
    tokens = sum(len(m["content"]) for messages in prompts for m in messages) / counting.characters
    mean = {kind: _mean_view_tokens(kind, study, counting) for kind in {kind for _, _, kind in todo}}
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


def _mean_view_tokens(kind, study, counting):
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
    prompts = [p for row in todo.itertuples(index=False) if (p := _prompt_text(row, study)) is not None]
    if not prompts:
        tokens, share = len(todo) * _UNSEEN_TOKENS, _UNSEEN_SHARE
        note = f"estimated, {_UNSEEN_TOKENS} a prompt, no view yet"
    else:
        tokens = len(todo) * sum(map(len, prompts)) / len(prompts) / counting.characters
        share, note = _fresh_share(prompts if grouped else sorted(prompts)), counting.note
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


def _stack_notes(names, setting):
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
    print(f"Estimated prompt tokens are counted at {_CHARACTERS_PER_TOKEN:g} characters each; measured ones by what "
          "recorded prompts of the stack took.")  # fmt: skip
    if "07_step_diagnostics" in set(frame["section"]):
        print("Not counted: the component audit of 07_step_diagnostics, which chooses its transitions by what is recorded "
              "first, and the actor's own calls in notebooks 08 and 09; these notebooks ask with ACQUIRE=missing.")  # fmt: skip
    print("\n".join(_stack_notes(list(dict.fromkeys(frame["stack"])), setting)))
