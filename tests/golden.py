"""What must not move: hashes of every request, prompt, projection, view text and committed table of the shipped study.

``python -m tests.golden`` writes ``golden.json`` anew; do that only where a change of the hashed texts is meant.
"""

import hashlib
import json
from pathlib import Path

import pandas as pd

from helpers.channels import sections
from helpers.channels.plan import cell_messages, load_study, request_body, request_key
from helpers.channels.stacks import load_stacks
from helpers.channels.views import GENERATED, quote, view_messages
from helpers.study.traces import STEPS

ROOT = Path(__file__).resolve().parent.parent
FILE = Path(__file__).with_name("golden.json")
CELL = ["trajectory_id", "state", "template", "view", "authority", "source_order", "readout", "stack", "view_state", "slice",
        "layout", "assessed", "wave"]  # fmt: skip
STACK, SECOND, WARM = "qwen-1.5b", "qwen-0.5b", "qwen-1.5b-t1.5"


def digest(values):
    """SHA-256 of a sequence of JSON values, in order."""
    text = "\n".join(json.dumps(value, ensure_ascii=False, sort_keys=True, default=int) for value in values)
    return hashlib.sha256(text.encode()).hexdigest()


def shipped_study():
    """The frozen study of the embedded profile."""
    return load_study(ROOT / "data/tasks.jsonl", ROOT / "data/trajectories.jsonl", ROOT / "data/views.jsonl")


def plans(ids):
    """The plan of every section over the given trajectories, by the section's name."""
    every = [(name, step) for name in ids for step in range(1, len(STEPS) + 1)]
    return {
        "global_replay": sections.global_replay(ids, STACK),
        "temperature_check": sections.temperature_check(ids, WARM),
        "retry": sections.retry(ids, STACK),
        "retrieval_face": sections.retrieval_face(ids, STACK),
        "matched_cube": sections.matched_cube(ids, STACK),
        "bridge": sections.bridge(ids, STACK, SECOND, (0, 1)),
        "source_only": sections.source_only(ids, STACK),
        "controls": sections.controls(ids, STACK),
        "step_diagnostics": sections.step_diagnostics(ids, STACK),
        "components": sections.components(every, STACK),
    }


def requests(study, stacks):
    """Hashes by section of its cells, its prompts, and its request keys under every stack, in plan order."""
    out = {}
    for section, plan in plans(list(study.trajectories)).items():
        rows = list(plan.itertuples(index=False))
        cells = [[None if pd.isna(v) else v for v in row] for row in plan[CELL].itertuples(index=False)]
        messages = [cell_messages(row, study) for row in rows]
        keys = {
            name: digest(
                None if said is None else request_key(request_body(said, stack), stack, row.wave)
                for row, said in zip(rows, messages, strict=True)
            )
            for name, stack in stacks.items()
        }
        out[section] = {
            "cells": len(rows), "of them with a prompt": sum(m is not None for m in messages),
            "plan": digest(cells), "prompts": digest(messages), "keys": keys,
        }  # fmt: skip
    return out


def found():
    """Every hash, measured now."""
    study, stacks = shipped_study(), load_stacks()
    texts = [(name, number, text) for name, states in study.states.items() for number, text in enumerate(states)]
    return {
        "requests": requests(study, stacks),
        "projections": digest([name, number, text] for name, number, text in texts),
        "quotes": digest(quote(text) for _, _, text in texts),
        "view prompts": {
            kind: digest(view_messages(study.task(name), text, rule) for name, _, text in texts)
            for kind, rule in GENERATED.items() if "wording" not in rule
        },
        "views": digest(sorted(study.views.items())),
        "tables": tables(),
    }


def tables():
    """SHA-256 of each committed table."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((ROOT / "outputs/embedded").glob("*.csv"))}


if __name__ == "__main__":
    FILE.write_text(json.dumps(found(), indent=1) + "\n", encoding="utf-8")
