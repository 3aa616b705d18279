"""Ask a hash-drawn sample of what is recorded again, and compare."""

from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from helpers.asking.client import client_for
from helpers.asking.recordings import READ, Recordings
from helpers.asking.run import Acquisition, missing_cells
from helpers.channels import sections
from helpers.channels.plan import add_keys, short_hash
from helpers.measuring.cells import read_cells
from helpers.measuring.reducers import endpoint_margins
from helpers.study.files import DataError


async def verify(setting, count, *, progress=True):
    """Ask a hash-drawn sample of recorded cells again; returns what :func:`compare` says of them.

    Whole endpoints (a state under a channel, all its layouts) are drawn, so that gains can be compared too.
    Nothing is written to the recordings.
    """
    study, stack = setting.study, setting.main
    name, store = stack.name, setting.store(stack.name)
    plan = add_keys(sections.global_replay(list(study.trajectories), name), study, setting.stacks)
    plan = plan[plan["key"].isin(store.keys())]
    if plan.empty:
        raise DataError(f"{store.parquet}: nothing recorded for {name} to verify.")
    sample = _draw_transitions(plan, count)
    with TemporaryDirectory() as folder:
        scratch = Recordings(folder, name)
        async with client_for(stack) as client:
            cells = missing_cells(sample, study, stack, scratch, section="verify")
            await Acquisition(scratch, stack, client, progress=progress).run(cells)
        return compare(sample, study, store.table(READ), scratch.table(READ))


def _draw_transitions(plan, count):
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
    """How far two recordings of the same cells lie apart: label log-probabilities and gains (nats), signs of gains."""
    cells = [read_cells(sample, table) for table in (recorded, fresh)]
    apart = np.abs(cells[0].values - cells[1].values)
    gains = []
    for part in cells:
        ends = endpoint_margins(part, study).set_index(["trajectory_id", "template", "state"])["margin"]
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
