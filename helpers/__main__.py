"""Every command: ``python -m helpers COMMAND``; ``--help`` after a command says what it takes.

The Makefile calls these. What a user sets there (PROFILE, NB, SET, WITHOUT, N) arrives in the environment, so that no shell
reads it a second time.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from helpers.asking.client import RunStopped
from helpers.channels.stacks import StackError, load_stack, load_stacks
from helpers.reporting.execute import NotebookFailed
from helpers.reporting.params import ROOT, ParameterError, settings_of
from helpers.reporting.reproduce import Stopped, plan, reproduce
from helpers.study.files import DataError, write_text

# Commands import what they need themselves: a spelling mistake should not cost the seconds that pandas takes.


def _report(options):
    page = reproduce(options.profile, only=options.nb, setting=options.set, without=options.without.split(),
                     source=os.environ.get("PUBMEDQA", ""), count=os.environ.get("N"))  # fmt: skip
    print(f"The report is up to date: {page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}")


def _keep_sources_clean(_):
    """Let git strip the outputs of source notebooks, so that working in JupyterLab leaves no trace in them."""
    filter_ = "sh -c 'if [ -x .venv/bin/python ]; then exec .venv/bin/python -m nbstripout; else exec cat; fi'"
    if (ROOT / ".git").exists():
        subprocess.run(["git", "config", "filter.outputs.clean", filter_], cwd=ROOT, check=False)


def _pages(options):
    from helpers.reporting import site

    folder = ROOT / settings_of(options.profile).OUTPUT
    print(f"{folder.relative_to(ROOT)}/index.html: {len(site.build(folder, options.profile))} notebooks.")


def _execute(options):
    jobs = plan(options.profile, only=options.notebook if options.only else "", setting=options.set)
    job = next(j for j in jobs if j.notebook == options.notebook)
    job.run()


def _record(options):
    from helpers.asking.budget import Budget
    from helpers.asking.forecast import forecasts, print_plan
    from helpers.asking.record import export, record
    from helpers.lab import setting_of

    setting = setting_of(options.profile, options.first)
    if options.command == "plan":
        print_plan(forecasts(setting.chosen(options.sections), setting), setting)
        return
    try:
        if options.command == "record":
            budget = Budget(options.calls, options.money)
            asyncio.run(record(setting, options.sections, budget=budget))
    finally:
        export(setting)


def _verify(options):
    from helpers.asking.verify import verify
    from helpers.lab import setting_of

    outcome = asyncio.run(verify(setting_of(options.profile, options.first), options.count))
    folder = ROOT / settings_of(options.profile).OUTPUT
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "verify.json", json.dumps(outcome, indent=1) + "\n")
    print("\n".join(f"{k}: {v:.4g}" if isinstance(v, float) else f"{k}: {v}" for k, v in outcome.items()))


def _why(options):
    from helpers.asking.why import print_why
    from helpers.lab import setting_of

    coordinates = ("template", "view", "slice", "authority", "source_order", "readout", "state", "layout", "assessed", "wave")
    wanted = {name: getattr(options, name) for name in coordinates if getattr(options, name) is not None}
    print_why(setting_of(options.profile), options.section, options.trajectory, wanted, options.most)


def _stats(options):
    from helpers.asking.why import stats

    folder = ROOT / settings_of(options.profile).RECORDINGS
    found = stats(folder, load_stacks())
    print(found.to_string() if len(found) else f"no recordings in {folder}.")


def _probe(options):
    from helpers.asking.probe import show_probe

    asyncio.run(show_probe(load_stack(options.stack), ROOT / settings_of(options.profile).RECORDINGS))


def _model(options):
    from helpers.asking.embedded import fetched

    print(fetched(load_stack(options.stack)))


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1 is needed")
    return number


def _parser():
    parser = argparse.ArgumentParser(prog="python -m helpers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def given(name, default=None):
        return os.environ.get(name) or default

    def command(name, call, summary):
        added = commands.add_parser(name, help=summary, description=summary)
        added.set_defaults(call=call)
        added.add_argument("--profile", default=given("PROFILE", "embedded"), help="a folder of params/")
        return added

    report = command("reproduce", _report, "execute what is out of date and write the report")
    report.add_argument("--nb", default=given("NB", ""), help="one notebook by its name")
    report.add_argument("--set", default=given("SET", ""), help="NAME=value texts in one")
    report.add_argument("--without", default=given("WITHOUT", ""), help="notebooks that are left out")
    command("sources-stay-clean", _keep_sources_clean, "let git strip the outputs of source notebooks")
    command("report", _pages, "write the pages from the notebooks that are executed already")
    one = command("execute", _execute, "execute one notebook, whether it is out of date or not")
    one.add_argument("notebook")
    one.add_argument("--set", default="")
    one.add_argument("--only", action="store_true", help="--set is meant for this notebook alone")
    for name, summary in (("plan", "what is planned, recorded and still to ask, with tokens, money and time"),
                          ("record", "generate views and ask what is missing; stop and go on at any time"),
                          ("export", "write what is in the journals to the Parquet files")):  # fmt: skip
        recorded = command(name, _record, summary)
        recorded.add_argument("--sections", nargs="*", default=[])
        recorded.add_argument("--first", type=_positive, default=given("N"), help="only the first so many trajectories")
        recorded.add_argument("--calls", type=int, help="most calls, for views and answers")
        recorded.add_argument("--money", type=float, help="most money, in the prices' currency")
    verified = command("verify", _verify, "ask a sample of the recorded questions again and compare")
    verified.add_argument("--first", type=_positive)
    verified.add_argument("--count", type=_positive, default=given("N", 64), help="cells to ask again")
    asked = command("why", _why, "why cells are not found among the recordings")
    asked.add_argument("--section", default="01_global_replay")
    asked.add_argument("--trajectory", help="trajectory_id; all without it")
    asked.add_argument("--most", type=int, default=20, help="cells that are shown at most")
    for name in ("template", "view", "slice", "authority", "source-order", "readout"):
        asked.add_argument(f"--{name}")
    for name in ("state", "layout", "assessed", "wave"):
        asked.add_argument(f"--{name}", type=int)
    command("stats", _stats, "recordings, tokens and money per stack, wave and section")
    for name, call, summary in (("probe", _probe, "three calls that show what an evaluator's endpoint can do"),
                                ("model", _model, "fetch and verify the model file of an embedded evaluator")):  # fmt: skip
        command(name, call, summary).add_argument("stack")
    return parser


def main(arguments=None):
    """Run one command; returns its exit code, after one sentence where it could not be done."""
    options = _parser().parse_args(arguments)
    try:
        options.call(options)
    except Stopped as stopped:
        return stopped.args[0]
    except (ParameterError, DataError, StackError, RunStopped, NotebookFailed, ValueError) as error:
        return _say(f"error: {error}", 2 if isinstance(error, ParameterError) else 1)
    except KeyboardInterrupt:
        return _say("stopped; everything answered so far is recorded, and the same command goes on from here.", 130)
    except OSError as error:
        where = error.filename or Path("outputs")
        return _say(f"error: {where}: {error.strerror or error}. Make it readable and its folder writable.", 1)
    return 0


def _say(text, code):
    print(text, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
