"""A synthetic study with planted truth: gains, interaction, layout bias and retry noise are known.

``python -m tests.rehearsal.simulate FOLDER`` writes tasks, library, trajectories and views of the ``smoke`` profile, and
``answers.jsonl``: what the loopback endpoint is to answer to each request. The planted margins follow the
hierarchy that the analysis assumes: a channel mean, a trajectory effect, a transition effect.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from helpers.asking.recordings import Recordings
from helpers.channels import sections
from helpers.channels.plan import _JOINT, CELL, _channel_of, add_keys, cell_messages, load_study, short_hash
from helpers.channels.prompts import _label_of
from helpers.channels.stacks import load_stacks
from helpers.channels.views import GENERATED
from helpers.measuring.labels import JOINT_LABELS
from helpers.study.files import write_jsonl
from helpers.study.tasks import FALLBACK, K
from helpers.study.traces import RETRIEVE, STEPS, acquired_artifact
from tests.rehearsal.endpoint import prompt_id

FAMILIES = ("intervention", "risk", "mechanism", "diagnostic", "insufficient-evidence")
STACKS = ("smoke", "smoke-2")
TARGETS = ("answer-a", "answer-b", "answer-c", FALLBACK)

# Planted mean gains of the retrieve step, nats. Authority and readout act on top (see ``planted_gain``).
GAIN = {
    "direct": 0.6,
    "generated-128": -0.4,
    "donor": 0.1,
    "empty": 0.5,
    "quote": 0.7,
    "ungrounded-512": -0.5,
    "source-only-512": 0.9,
    "rationale-128": -0.6,
    "rationale-512": -0.1,
    "evidence-rationale-128": -0.2,
    "candidates": 0.0,
}
ELSEWHERE = 0.3  # share of the mean gain that the other steps have
PRIMARY = -0.2  # evidence-primary minus neutral
STATE_LAST = -0.1
EVIDENCE_ONLY = -0.15  # the evidence slice, scored directly, minus the full state
SCALE = {("joint", "smoke"): 1.0, ("binary", "smoke"): 0.7, ("binary", "smoke-2"): 2.0, ("joint", "smoke-2"): 1.5}
NO_ARTIFACT_SHIFT = 0.05  # source-only minus ungrounded gain where nothing was retrieved
LAYOUT_BIAS = (0.9, 0.3, -0.2, -0.6)  # preference for each label, nats


def planted_gain(channel, step, artifact):
    """Mean gain of a channel at a step (1 … 11), before trajectory and transition effects, in nats."""
    unaided = channel.template == "direct" or (channel.template, channel.view) == ("two-pass", "empty")
    view = "direct" if unaided else channel.view
    mean = GAIN[view]
    if view == "source-only-512" and not artifact:
        mean = GAIN["ungrounded-512"] + NO_ARTIFACT_SHIFT
    mean += PRIMARY * (channel.authority == "evidence-primary") + STATE_LAST * (channel.source_order == "state-last")
    mean += EVIDENCE_ONLY * (unaided and channel.slice == "evidence")
    share = 1.0 if step == RETRIEVE + 1 else ELSEWHERE
    return share * SCALE[channel.readout, channel.stack] * mean


def _noise(seed, *what):
    """A standard normal number that depends on what it is for, and on nothing else."""
    return np.random.default_rng([seed, int(short_hash([str(w) for w in what]), 16)]).standard_normal()


def planted_margin(trajectory, state, channel, *, seed, trajectory_sd, transition_sd):
    """Margin of one state under one channel: a start and one gain a step, in nats.

    A view frozen at another state (the retrieval face) carries half of the gain, the state the other half.
    """
    name, artifact = trajectory.trajectory_id, acquired_artifact(trajectory)
    family = (channel.template, channel.view, channel.readout, channel.stack)
    family += (channel.slice,) if channel.slice != "full" else ()
    margin = -1.0 + 0.5 * _noise(seed, "start", name, channel.stack)
    for step in range(1, len(STEPS) + 1):
        gain = planted_gain(channel, step, artifact)
        gain += trajectory_sd * _noise(seed, "trajectory", name)
        gain += transition_sd * _noise(seed, "transition", name, step, *family)
        seen = (state >= step) if channel.view_state is None else (
            0.5 * (state >= step) + 0.5 * (channel.view_state >= step)
        )
        margin += gain * seen
    return margin


def energies_with_margin(margin, target, spread):
    """Four candidate energies whose target margin is exactly ``margin``; the others lie ``spread`` apart."""
    energies = np.array([0.0, spread, -spread, 0.5 * spread])
    rest = np.delete(energies, target)
    energies[target] = margin + np.logaddexp.reduce(rest)
    return energies


def answer(energies, layout, assessed, *, noise):
    """Tokens and log-probabilities that an endpoint returns for energies under a layout.

    ``noise`` holds one number a label, added before normalising.
    """
    if assessed != _JOINT:
        energy = energies[assessed] + noise[0]
        values = {"Yes": -np.logaddexp(0, -energy), "No": -np.logaddexp(0, energy)}
    else:
        shown = {_label_of(j, layout): energies[j] for j in range(K)}
        raw = np.array([shown[label] for label in JOINT_LABELS]) + LAYOUT_BIAS + noise
        values = dict(zip(JOINT_LABELS, raw - np.logaddexp.reduce(raw), strict=True))
    rest = [("The", -6.0), ("\n", -7.5)]
    pairs = [(t, float(v) - 0.01) for t, v in values.items()] + rest
    return sorted(pairs, key=lambda pair: -pair[1])


def synthetic_rows(count):
    """Tasks, library, trajectory and view rows of a study with ``count`` trajectories."""
    tasks, library, trajectories, views = [], [], [], []
    for i in range(count):
        family = FAMILIES[i % len(FAMILIES)]
        target = TARGETS[i % len(TARGETS)]
        topic = f"compound {chr(65 + i % 26)}{i}"
        texts = [f"{topic} raises the level.", f"{topic} lowers the level.", f"{topic} acts in some groups only."]
        candidates = [{"candidate_id": c, "text": t} for c, t in zip(TARGETS[:3], texts, strict=True)]
        candidates.append({"candidate_id": FALLBACK, "text": "The evidence is insufficient for any of these."})
        task_id, name = f"synthetic-{i:03d}", f"traj-synthetic-{i:03d}"
        question = f"How does {topic} change the level?"
        tasks.append({"task_id": task_id, "family": family, "question": question, "candidates": candidates, "target": target,
                      "source": {"pmid": f"90000{i:02d}"}})  # fmt: skip
        document = {"doc_id": f"pmid:90000{i:02d}", "year": 2000 + i % 20, "design": "simulation"}
        library.append({**document, "summary": f"A simulated note on {topic} and the level, number {i}."})
        artifact = [{**document, "text": library[-1]["summary"]}] if i % 3 else []
        patches = {"classify": {"question_type": "other"}, "plan": {"plan": {"query": topic}}, "retrieve": {"artifacts": artifact}}
        patches |= {"synthesize": {"answer": f"{topic} has an effect."}, "finalize": {"status": "answered"}}
        steps = [
            {"action": a, "patch": patches.get(a, {}), "observation": f"{a} done", "mode": "deterministic", "cost": {}}
            for a in STEPS
        ]
        x0 = {"question": question, "artifacts": [], "evidence": [], "answer": ""}
        success = i % 2 == 0
        trajectories.append({"trajectory_id": name, "task_id": task_id, "x0": x0, "steps": steps,
                             "final_score": 1.0 if success else 0.5, "success": success})  # fmt: skip
        for kind in (*GENERATED, "donor"):
            everywhere = kind == "generated-128" or "rationale" in kind
            states = range(len(STEPS) + 1) if everywhere else (RETRIEVE, RETRIEVE + 1)
            support = "missing" if kind == "source-only-512" else f"{topic} is reported to raise the level"
            for state in states:
                text = json.dumps({"CANDIDATE_01": {"support": support, "missing": f"view {kind} of state {state}"}})
                views.append({"trajectory_id": name, "state": state, "kind": kind, "text": text})
    return tasks, library, trajectories, views


def every_plan(ids, waves):
    """The cells of every section of the registry as one plan, with so many waves of the bridge."""
    asked = sections.Evaluators(*STACKS)
    rows = [row for row in sections.SECTIONS if row.plan and row.possible(asked)]
    plans = [row.plan(ids, asked, waves if row.name == "05_bridge" else row.waves) for row in rows]
    return sections.together(*plans).drop_duplicates(ignore_index=True)


def simulated_answers(plan, study, *, seed=1, noise_sd=0.05, trajectory_sd=0.4, transition_sd=0.6):
    """Yield ``(row of the plan, tokens, logprobs)`` for every cell of a plan."""
    for row in plan.itertuples(index=False):
        trajectory = study.trajectories[row.trajectory_id]
        channel = _channel_of(row)
        margin = planted_margin(trajectory, row.state, channel, seed=seed,
                                trajectory_sd=trajectory_sd, transition_sd=transition_sd)  # fmt: skip
        energies = energies_with_margin(margin, study.target(row.trajectory_id), 0.4)
        noise = noise_sd * np.array([_noise(seed, "retry", *map(str, row), k) for k in range(K)])
        pairs = answer(energies, row.layout, row.assessed, noise=noise)
        yield row, [t for t, _ in pairs], [v for _, v in pairs]


def record_directly(plan, study, folder, stacks, **how):
    """Write the simulated answers of a keyed plan into Parquet recordings, without any endpoint."""
    rows = {}
    for row, tokens, logprobs in simulated_answers(plan.drop_duplicates("key"), study, **how):
        cell = {name: getattr(row, name) for name in CELL}
        cell = {k: None if pd.isna(v) else getattr(v, "item", lambda v=v: v)() for k, v in cell.items()}
        answer_row = {"key": row.key, "tokens": tokens, "logprobs": logprobs, "returned_model": stacks[row.stack].model}
        rows.setdefault(row.stack, []).append({**cell, **answer_row})
    for name, found in rows.items():
        store = Recordings(folder, name)
        with store.writer() as write:
            write(found)
        store.export()


def write_frozen(folder, count):
    """Write the synthetic tasks, library, trajectories and views; returns the study."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tasks, library, trajectories, views = synthetic_rows(count)
    for name, rows in {"tasks": tasks, "library": library, "trajectories": trajectories, "views": views}.items():
        write_jsonl(folder / f"{name}.jsonl", rows)
    return load_study(folder / "tasks.jsonl", folder / "trajectories.jsonl", folder / "views.jsonl")


def write_study(folder, *, count=8, seed=1, noise_sd=0.05):
    """Write the synthetic study and the endpoint's answers; returns the study."""
    study, stacks = write_frozen(folder, count), load_stacks()
    plan = add_keys(every_plan(list(study.trajectories), (0, 1)), study, stacks).drop_duplicates("key")
    answers = {}
    for row, tokens, logprobs in simulated_answers(plan, study, seed=seed, noise_sd=noise_sd):
        key = prompt_id({"model": stacks[row.stack].model, "messages": cell_messages(row, study)})
        answers.setdefault(key, []).append({"tokens": tokens, "logprobs": [round(v, 6) for v in logprobs]})
    write_jsonl(Path(folder) / "answers.jsonl", [{"prompt": key, "answers": found} for key, found in answers.items()])
    return study
