"""From a plan to its recordings: read what ships, ask for what is missing, or ask again.

``ACQUIRE = "recorded"`` reads only; ``"missing"`` asks the stacks for cells without a recording;
``"fresh"`` moves the plan to waves that nobody has recorded yet and asks all of it.
"""

import pyarrow as pa

from helpers.budget import Budget
from helpers.evaluator import Acquisition, RunStopped, client_for, missing_cells, unrecorded
from helpers.plan import add_keys
from helpers.probe import BINARY_PROMPT, CALLS, JOINT_PROMPT, ensure_probed
from helpers.recordings import Recordings

MODES = ("recorded", "missing", "fresh")


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


def one_currency(stacks, budget):
    """ValueError where one budget of money would be held against prices in several currencies."""
    currencies = sorted({stack.price["currency"] for stack in stacks})
    if budget.money is not None and len(currencies) > 1:
        raise ValueError(
            f"a budget of money is one amount, but the prices are in {' and '.join(currencies)}; ask one stack at a time."
        )


def _probe_at_most(stack):
    """The most that the probe of a stack can cost: its calls at one token a byte of the longer prompt."""
    prompt = max(len(JOINT_PROMPT), len(BINARY_PROMPT)) + 100  # the messages' own JSON and the chat template
    return CALLS * (prompt * stack.price["input"] + stack.sampling["max_tokens"] * stack.price["output"]) / 1e6


async def probe_first(stack, client, store, budget, readouts=("joint",)):
    """Probe a stack that has no good probe yet, within the budget; StackError where the probe refuses it."""
    most = _probe_at_most(stack)
    if budget.money is not None and budget.spent + most > budget.money:
        raise RunStopped(
            f"{stack.name}: its probe can cost {most:.2g} {stack.price['currency']}, of the budget of "
            f"{budget.money:g} {budget.money - budget.spent:.2g} is left; raise the budget."
        )
    calls = await ensure_probed(stack, client, store, readouts=readouts, budget_calls=budget.calls_left)
    budget.charge(calls, most if calls else 0.0)


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
        readouts = {fields["readout"] for fields, _ in cells}
        async with client_for(stack, timeout_s=timeout_s) as client:
            budget = budget or Budget()
            await probe_first(stack, client, store, budget, readouts)
            run = Acquisition(store, stack, client, budget=budget, progress=progress)
            return await run.run(cells)
