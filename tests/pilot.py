"""Try wordings on known-answer states: ``python -m tests.pilot score|views|table`` (data/instrument/README.md).

Only the last 12 known-answer tasks are used, so that 20 of the recorded ones stay unseen by the choice. A row is written when
all cells of a (variant, task, dose) are answered; what is there is not asked again.
"""

import argparse
import asyncio
import copy
import json

import numpy as np

from helpers.asking.client import ask_again, client_for, parse_answer, parse_text
from helpers.asking.instrument import known_answer_study
from helpers.channels import wordings
from helpers.channels.channels import Channel
from helpers.channels.plan import request_body
from helpers.channels.prompts import layout_order
from helpers.channels.stacks import load_stacks
from helpers.channels.views import quote
from helpers.measuring.claims import supported_candidates
from helpers.measuring.labels import LABELS_OF, read_labels
from helpers.reporting.params import ROOT
from helpers.study.files import append_jsonl, read_jsonl
from helpers.study.known_answers import doses
from helpers.study.projection import projected_states
from helpers.study.tasks import FALLBACK

FOLDER = ROOT / "data" / "instrument"
TRIED, VIEWS = FOLDER / "tried.jsonl", FOLDER / "tried_views.jsonl"
LAST = 12
# What is open: name to (template, readout, blocks that differ from the plain words).
VARIANTS = {
    "one list with ids": ("matched", "joint", {}),
    "one list": ("matched", "joint", {"mapped": "<label>: <text>"}),
    "alias behind": ("matched", "support", {}),
    "buffered list": ("buffered", "joint", {}),
    "buffered alias": ("buffered", "support", {}),
}  # fmt: skip
GENERATORS = {
    "G1": {},
    "G2": {
        "instruction": (
            "Make short notes on the evidence: its finding, the statements that it supports, the statements that it contradicts, "
            "what is missing and what is unclear. Name statements by their id. Do not use letters for them, do not mention "
            "answer keys or scores, and do not choose an answer."
        ),
        "form": (
            'Write short JSON: {"finding": "...", "supported": ["id: why"], "contradicted": ["id: why"], "missing": "...", '
            '"unclear": "..."}'
        ),
    },
}


def changed(template, blocks):
    """The plain words with other blocks in one template."""
    words = copy.deepcopy(wordings.PLAIN)
    words[template] |= blocks
    return words


def states():
    """(number, task, dose, projected state) of the pilot's tasks."""
    study = known_answer_study()
    for number, trajectory in enumerate(list(study.trajectories.values())[-LAST:]):
        task = study.tasks[trajectory.task_id]
        yield from ((number, task, *pair) for pair in zip(doses(trajectory), projected_states(trajectory), strict=True))


async def score(names, view, wanted, stack):
    """Candidate energies of variants; a row a (variant, task, dose)."""
    rows = read_jsonl(TRIED, missing_ok=True)
    have = {(r["variant"], r["task"], r["dose"]) for r in rows if None not in r["energies"]}
    async with client_for(stack) as client:
        for number, task, dose, state in states():
            for name in names if dose in wanted else ():
                template, readout, blocks = VARIANTS[name]
                row = {"variant": f"{template}/{view}/{readout}/{name}", "task": task["task_id"], "dose": dose}
                if tuple(row.values()) not in have:
                    text = quote(state) if view == "quote" else ""
                    channel, words = (
                        Channel(template, view, readout=readout, wording="plain"),
                        changed(template, blocks),
                    )
                    row["energies"] = await energies(client, stack, channel, task, state, text, number, words)
                    append_jsonl(TRIED, row)
                    print(row, flush=True)


async def energies(client, stack, channel, task, state, view, number, words):
    """Energies by candidate: one layout of the joint readout, or the support readout of each candidate."""
    size = len(task["candidates"])
    layout, out = number % size, [None] * size
    for i in range(size) if channel.readout == "support" else (0,):
        messages = wordings.messages(channel, task, state, view, layout, i, words)
        answer = await ask_again(client, request_body(messages, stack), parse_answer, price=stack.price)
        values = read_labels(answer.get("tokens"), answer.get("logprobs"), LABELS_OF[channel.readout]).values
        if channel.readout == "support":
            out[i] = round(values[0] - values[1], 4)
        else:
            for slot, candidate in enumerate(layout_order(layout)):
                out[candidate] = round(values[slot], 4)
    return [None if value is None or np.isnan(value) else value for value in out]


async def views(names, source_only, wanted, first, stack):
    """Views of generator variants, with the candidates that the parser finds supported."""
    key = ("variant", "task", "dose", "source_only")
    have = {tuple(r[k] for k in key) for r in read_jsonl(VIEWS, missing_ok=True)}
    async with client_for(stack) as client:
        for number, task, dose, state in states():
            for name in names if dose in wanted and number < first else ():
                if (name, task["task_id"], dose, source_only) in have:
                    continue
                messages = wordings.generator_messages(
                    task, state, source_only=source_only, words=changed("generator", GENERATORS[name])
                )
                body = {"model": stack.model, "messages": messages, "temperature": 0, "max_tokens": 200}
                answer = await ask_again(client, body, parse_text, price=stack.price)
                texts = [c["text"] for c in task["candidates"]]
                fallback = [c["candidate_id"] for c in task["candidates"]].index(FALLBACK)
                found = supported_candidates(answer["text"], fallback, texts=texts)
                row = dict(zip(key, (name, task["task_id"], dose, source_only), strict=True))
                append_jsonl(
                    VIEWS, row | {"text": answer["text"], "supported": None if found is None else sorted(found)}
                )


def table(rows, tasks):
    """One dict a variant: specific gains from ``none`` (mean, standard error), accuracy and abstentions by dose."""
    of = {}
    for r in rows:
        if None not in r["energies"]:
            of.setdefault(r["variant"], {})[r["task"], r["dose"]] = np.array(r["energies"])
    return [{"variant": name, **_measured(found, tasks)} for name, found in sorted(of.items())]


def _measured(found, tasks):
    out = {"tasks": len({task for task, _ in found})}
    for dose in dict.fromkeys(dose for _, dose in found):
        gains, right, abstains = [], [], []
        for name in [task for task, d in found if d == dose]:
            ids = [c["candidate_id"] for c in tasks[name]["candidates"]]
            target, fallback = ids.index(tasks[name]["target"]), ids.index(FALLBACK)
            others = [i for i in range(len(ids)) if i not in (target, fallback)]
            u, none = found[name, dose], found.get((name, "none"))
            right.append(u[target] > u[others].max())
            abstains.append(int(u.argmax()) == fallback)
            if none is not None:
                gains.append((u - none)[target] - (u - none)[others].mean())
        out[f"abstains_{dose}"] = round(float(np.mean(abstains)), 2)
        if dose != "none":
            out[f"right_{dose}"] = round(float(np.mean(right)), 2)
            error = np.std(gains, ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else np.nan
            out[f"gain_{dose}"] = f"{np.mean(gains):+.2f} ± {error:.2f}" if gains else None
    return out


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.pilot", description=__doc__.split("\n\n")[0])
    parser.add_argument("action", choices=["score", "views", "table"])
    parser.add_argument("--variants", nargs="*", default=[])
    parser.add_argument("--view", default="quote", choices=["empty", "quote"])
    parser.add_argument("--doses", nargs="*", default=["none", "oracle"])
    parser.add_argument("--ungrounded", action="store_true")
    parser.add_argument("--first", type=int, default=LAST, help="views: tasks")
    options = parser.parse_args(arguments)
    stack = load_stacks()["qwen-1.5b"]
    if options.action == "table":
        for row in table(read_jsonl(TRIED), known_answer_study().tasks):
            print(json.dumps(row))
    elif options.action == "score":
        asyncio.run(score(options.variants or list(VARIANTS), options.view, options.doses, stack))
    else:
        names = options.variants or list(GENERATORS)
        asyncio.run(views(names, not options.ungrounded, options.doses, options.first, stack))


if __name__ == "__main__":
    main()
