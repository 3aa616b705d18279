"""Record known-answer states: what tells whether an evaluator can answer.

``python -m helpers.asking.instrument --stack qwen-1.5b --first 24`` generates the missing views of the known-answer
states and asks what is not recorded; stop it and go on at any time with the same command.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from helpers.asking.acquire import ask_missing
from helpers.asking.client import RunStopped
from helpers.asking.generate import obtain_views
from helpers.asking.recordings import Recordings
from helpers.channels.known_answer_plan import BUFFERED_VIEWS, instrument, parts
from helpers.channels.plan import Study, add_keys
from helpers.channels.stacks import StackError, load_stacks
from helpers.channels.views import load_views
from helpers.reporting.params import ROOT
from helpers.study.files import DataError
from helpers.study.known_answers import DOSES, known_answers
from helpers.study.tasks import load_library, load_tasks

DEVELOPMENT = slice(60, 100)  # tasks 61 to 100: no section analyses them
VIEWS = ROOT / "data" / "instrument" / "views.jsonl"
BATCH = 12  # trajectories that go through the parts together, so that a stopped recording has verdicts
PARTS_VIEWS = {"matched_plain": "plain", "matched_paper": "paper", "buffered": "paper"}


def known_answer_study(data=ROOT / "data", views=VIEWS, first=None):
    """The development tasks with the first so many of their known-answer trajectories and the views frozen for them."""
    tasks = load_tasks(Path(data) / "tasks.jsonl")[DEVELOPMENT]
    trajectories = known_answers(tasks, load_library(Path(data) / "library.jsonl"))[:first]
    by_id = {task["task_id"]: task for task in tasks}
    frozen = load_views(views, trajectories, by_id) if Path(views).exists() else {}
    return Study(by_id, {t.trajectory_id: t for t in trajectories}, frozen)


async def record(stack, stacks, study, folder, *, views=VIEWS, small=False, batch=BATCH, only=()):
    """Ask a stack for every instrument of :func:`known_answer_plan.parts`, verdicts first, batch by batch.

    ``only``: names of the parts to record; all without one.
    """
    names = list(study.trajectories)
    batches = [names[i : i + batch] for i in range(0, len(names), batch)]
    of = [part for part in parts(stack.name, small=small) if not only or part in only]
    urgent, later = of[:2], of[2:]
    todo = [(b, part) for b in batches for part in urgent] + [(b, part) for b in batches for part in later]
    for ids, part in todo:
        if part in PARTS_VIEWS:
            kinds = [BUFFERED_VIEWS[PARTS_VIEWS[part]]]
            few = Study(study.tasks, {n: study.trajectories[n] for n in ids}, study.views)
            few = await obtain_views(few, kinds, range(len(DOSES)), path=views, stack=stack, acquire="missing")
            study = Study(study.tasks, study.trajectories, study.views | few.views)
        plan = add_keys(instrument(ids, stack.name, only=part, small=small), study, stacks)
        store = Recordings(folder, stack.name)
        written = await ask_missing(plan, study, stack, store, section="00a_instrument", progress=False)
        print(
            f"{stack.name}, {part}, {ids[0]} to {ids[-1]}: {written} answers of {plan['key'].nunique()} cells.",
            flush=True,
        )


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m helpers.asking.instrument", description=__doc__.split("\n\n")[0])
    parser.add_argument("--stack", default="qwen-1.5b")
    parser.add_argument("--first", type=int, default=24, help="known-answer trajectories")
    parser.add_argument("--small", action="store_true", help="the direct template alone")
    parser.add_argument("--parts", nargs="*", default=[], help="names of known_answer_plan.parts; all without one")
    parser.add_argument("--folder", default=str(ROOT / "data" / "recordings"))
    options = parser.parse_args(arguments)
    try:
        stacks = load_stacks()
        study = known_answer_study(first=options.first)
        asyncio.run(
            record(stacks[options.stack], stacks, study, options.folder, small=options.small, only=options.parts)
        )
    except (DataError, StackError, RunStopped, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; what was answered is recorded, and the same command goes on from here.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
