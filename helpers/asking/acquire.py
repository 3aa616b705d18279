"""From a plan to its recordings: read what ships, ask for what is missing, or ask again.

``ACQUIRE = "recorded"`` reads only; ``"missing"`` asks the stacks for cells without a recording;
``"fresh"`` moves the plan to waves that nobody has recorded yet and asks all of it.
"""

import json

import pyarrow as pa

from helpers.asking.budget import Budget
from helpers.asking.client import client_for
from helpers.asking.probe import ensure_probed
from helpers.asking.recordings import Recordings
from helpers.asking.run import Acquisition, missing_cells, unrecorded
from helpers.channels.plan import add_keys, request_body
from helpers.reporting.params import CHOICES

MODES = CHOICES["ACQUIRE"]


def check_mode(acquire):
    """Return the mode, or raise ValueError with the modes that exist."""
    if acquire not in MODES:
        raise ValueError(f"ACQUIRE = {acquire!r}; use one of {', '.join(MODES)}.")
    return acquire


def fresh_waves(plan, tables):
    """The plan with its waves moved past every recorded wave of its stacks."""
    recorded = [w for t in tables for w in t["wave"].to_pylist() if w is not None]
    return plan.assign(wave=plan["wave"] + max(recorded, default=-1) + 1)


async def obtain(plan, study, stacks, folder, *, acquire="recorded", section="", order=None, budget=None,
                 timeout_s=None, progress=True):  # fmt: skip
    """The keyed plan and an Arrow table of everything recorded for its stacks.

    Parameters
    ----------
    plan : DataFrame from ``plan.make_plan``
    stacks : dict of name to Stack
    folder : path of the recordings
    acquire : "recorded", "missing" or "fresh"
    budget : Budget, optional
        What this run may spend over all its stacks, with their probes; the views that were written before count too
        when they had the same budget.
    """
    check_mode(acquire)
    names = list(dict.fromkeys(plan["stack"]))
    told_apart([stacks[name] for name in names])
    stores = {name: Recordings(folder, name) for name in names}
    if acquire == "fresh":
        plan = fresh_waves(plan, [store.table(["key", "wave"]) for store in stores.values()])
    plan = add_keys(plan, study, stacks)
    if acquire != "recorded":
        budget = budget or Budget()
        one_currency([stacks[name] for name in names], budget)
        for name in names:
            await ask_missing(
                plan, study, stacks[name], stores[name], section=section, order=order,
                budget=budget, timeout_s=timeout_s, progress=progress,
            )  # fmt: skip
    tables = [store.table() for store in stores.values()]
    return plan, pa.concat_tables(tables).sort_by("key")


def told_apart(stacks):
    """ValueError where two stacks would ask the same evaluator in the same way: each answer would be paid for twice."""
    seen = {}
    for stack in stacks:
        other = seen.setdefault(json.dumps([stack.identity, request_body([], stack)], sort_keys=True), stack)
        if other is not stack:
            raise ValueError(f"stacks {other.name} and {stack.name} are one evaluator with one setting; name two that differ.")


def one_currency(stacks, budget):
    """ValueError where one budget of money would be held against prices in several currencies."""
    currencies = sorted({stack.price["currency"] for stack in stacks})
    if budget.money is not None and len(currencies) > 1:
        raise ValueError(
            f"a budget of money is one amount, but the prices are in {' and '.join(currencies)}; ask one stack at a time."
        )


async def ask_missing(plan, study, stack, store, *, section="", order=None, budget=None, timeout_s=None,
                      progress=True):  # fmt: skip
    """Ask one stack for the cells it has no recording of; returns the number of answers written.

    Nothing is started and no key is needed when there is nothing to ask. The first run over a stack probes
    it; the probe's calls count against the budget. StackError where the probe refuses the stack.
    """
    if unrecorded(plan, stack, store).empty:
        return 0
    async with store.my_turn():
        cells = missing_cells(plan, study, stack, store, order=order, section=section)
        if not cells:
            return 0
        readouts = {"binary" if fields["readout"] == "support" else fields["readout"] for fields, _ in cells}
        async with client_for(stack, timeout_s=timeout_s) as client:
            budget = budget or Budget()
            await ensure_probed(stack, client, store, readouts=readouts, budget=budget)
            run = Acquisition(store, stack, client, budget=budget, progress=progress)
            return await run.run(cells)
