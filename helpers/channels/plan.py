"""Plans: one row per cell, made before anything is asked, and the requests they stand for."""

import hashlib
import itertools
import json
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from helpers.channels import prompts, wordings
from helpers.channels.channels import CHANNEL_FIELDS, YES_NO, Channel
from helpers.channels.views import load_views, quote, view_id
from helpers.study.files import DataError
from helpers.study.projection import projected_states, state_slice
from helpers.study.tasks import K, load_tasks
from helpers.study.traces import load_trajectories

CELL = ("trajectory_id", "state", *CHANNEL_FIELDS, "layout", "assessed", "wave")
LAYOUTS = (0, 1, 2, 3)
JOINT = -1  # value of ``assessed`` where all candidates are read at once


@dataclass(frozen=True)
class Study:
    """Frozen inputs: tasks, trajectories and views, with the projections made once.

    ``file`` is ``{trajectory_id: task_id}`` of the whole file where the study holds only a part of it: a choice among
    all trajectories, such as a donor, must not depend on how many are looked at.
    """

    tasks: dict
    trajectories: dict
    views: dict = field(default_factory=dict)
    file: dict = field(default_factory=dict)

    @cached_property
    def task_ids(self):
        """Task of every trajectory of the file, also of those that are left out, in the file's order."""
        return self.file or {name: t.task_id for name, t in self.trajectories.items()}

    @cached_property
    def states(self):
        """``{trajectory_id: [text of x0, …, text of x11]}``"""
        return {name: projected_states(t) for name, t in self.trajectories.items()}

    def task(self, trajectory_id):
        """The task that a trajectory belongs to."""
        return self.tasks[self.task_ids[trajectory_id]]

    def target(self, trajectory_id):
        """Position (0 … 3) of the reviewed target among a trajectory's candidates."""
        task = self.task(trajectory_id)
        return [c["candidate_id"] for c in task["candidates"]].index(task["target"])

    def view(self, trajectory_id, state, kind):
        """Text of a view; None where a generated view has not been frozen."""
        if kind == "empty":
            return ""
        if kind == "quote":
            return quote(self.states[trajectory_id][state])
        if kind == "candidates":
            return prompts.two_pass_manifest(self.task(trajectory_id))
        return self.views.get(view_id(trajectory_id, state, kind))

    def same_view(self, trajectory_id, before, after, kind):
        """Whether two states of a trajectory have the same view, word for word; False where one is not frozen."""
        texts = {self.view(trajectory_id, state, kind) for state in (before, after)}
        return len(texts) == 1 and None not in texts


def load_study(tasks_path, trajectories_path, views_path=None, first=None):
    """Read the frozen inputs; ``first`` keeps the first so many trajectories of the file."""
    tasks = load_tasks(tasks_path)
    trajectories = load_trajectories(trajectories_path, tasks)
    by_id = {task["task_id"]: task for task in tasks}
    views = load_views(views_path, trajectories, by_id) if views_path else {}
    kept = trajectories[:first] if first else trajectories
    if not kept:
        raise DataError(f"{trajectories_path}: no trajectory to work with.")
    return Study(by_id, {t.trajectory_id: t for t in kept}, views, {t.trajectory_id: t.task_id for t in trajectories})


def make_plan(trajectory_ids, states, channels, *, waves=(0,), layouts=LAYOUTS):
    """Cells as a DataFrame, one row each, in declared order.

    Columns are ``trajectory_id, state``, the channel's fields, ``layout``, ``assessed`` (candidate
    position, or -1 for the joint readout) and ``wave``. The support readout shows one candidate, so it has no
    layouts: its cells stand at layout 0.
    """
    rows = []
    for name, state, channel, wave, layout in itertools.product(trajectory_ids, states, channels, waves, layouts):
        if channel.readout == "support" and layout != layouts[0]:
            continue
        layout = 0 if channel.readout == "support" else layout
        assessed = range(K) if channel.readout in YES_NO else (JOINT,)
        rows += [(name, state, *channel.fields().values(), layout, a, wave) for a in assessed]
    return pd.DataFrame(rows, columns=list(CELL)).astype({"view_state": "Int64"})


def channel_of(row):
    """The Channel of a plan row (a named tuple or a mapping)."""
    values = row if isinstance(row, dict) else row._asdict()
    fields = {name: values[name] for name in CHANNEL_FIELDS}
    fields["view_state"] = None if pd.isna(fields["view_state"]) else int(fields["view_state"])
    return Channel(**fields)


def cell_messages(row, study):
    """Messages of one cell, or None where its view has not been frozen."""
    channel = channel_of(row)
    state = state_slice(study.states[row.trajectory_id][row.state], channel.slice)
    task = study.task(row.trajectory_id)
    view_state = row.state if channel.view_state is None else channel.view_state
    view = study.view(row.trajectory_id, view_state, channel.view)
    if view is None:
        return None
    if channel.wording == "plain" or channel.readout == "support":
        return wordings.messages(channel, task, state, view, row.layout, row.assessed)
    if channel.template == "direct":
        return prompts.direct_messages(task, state, row.layout)
    if channel.template == "two-pass":
        return prompts.two_pass_messages(task, state, view, row.layout)
    options = {"authority": channel.authority, "source_order": channel.source_order}
    if channel.template == "buffered":
        return prompts.buffered_messages(task, state, view, row.layout, **options)
    assessed = None if row.assessed == JOINT else row.assessed
    return prompts.matched_messages(task, state, view, row.layout, assessed=assessed, **options)


def request_body(messages, stack):
    """The full request: messages, model, sampling settings and the stack's extra fields."""
    return {"model": stack.model, "messages": messages, "logprobs": True, **stack.sampling, **stack.extra_body}


def request_key(body, stack, wave):
    """SHA-256 of the canonical request, the stack's identity and the wave."""
    content = {"request": body, "stack": stack.identity, "wave": int(wave)}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def short_hash(value):
    """First 12 hexadecimal digits of the SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def request_parts(row, study, stack):
    """Short hashes of what a request is made of, so that a miss can be explained field by field."""
    task = study.task(row.trajectory_id)
    view_state = row.state if pd.isna(row.view_state) else int(row.view_state)
    return {
        "state_hash": short_hash(state_slice(study.states[row.trajectory_id][row.state], row.slice)),
        "view_hash": short_hash(study.view(row.trajectory_id, view_state, row.view)),
        "task_hash": short_hash([task["question"], task["candidates"]]),
        "settings": json.dumps({"model": stack.model, **stack.sampling, **stack.extra_body}, sort_keys=True),
        "identity": json.dumps(stack.identity, sort_keys=True),
    }


def add_keys(plan, study, stacks):
    """The plan with a ``key`` column: what each cell's recording is called (None without a view)."""
    keys = []
    for row in plan.itertuples(index=False):
        messages = cell_messages(row, study)
        stack = stacks[row.stack]
        keys.append(None if messages is None else request_key(request_body(messages, stack), stack, row.wave))
    return plan.assign(key=keys)


def in_order(plan, study, order):
    """Row positions of a plan in the order in which they are asked.

    ``prefix``: trajectory by trajectory, prompts sorted as text, which walks the tree of shared
    prefixes depth first, so a server that caches the last prompt evaluates each branch once.
    ``prefix-groups``: groups of one state and channel in hashed order, waves interleaved.
    ``hash``: single requests in hashed order.
    """
    first_seen = {name: i for i, name in enumerate(dict.fromkeys(plan["trajectory_id"]))}

    def text(row):
        return json.dumps(cell_messages(row, study), ensure_ascii=False)

    def group(row):
        return short_hash([row.trajectory_id, row.state, *map(str, channel_of(row).fields().values()), row.wave])

    ranks = {
        "prefix": lambda row: (first_seen[row.trajectory_id], text(row), row.wave),
        "prefix-groups": lambda row: (first_seen[row.trajectory_id], group(row), text(row)),
        "hash": lambda row: (short_hash([group(row), row.layout, row.assessed]),),
    }
    if order not in ranks:
        raise ValueError(f"order {order!r}; use prefix, prefix-groups or hash.")
    keyed = [(ranks[order](row), position) for position, row in enumerate(plan.itertuples(index=False))]
    return [position for _, position in sorted(keyed)]
