"""Every command: ``python -m helpers COMMAND``; ``--help`` after a command says what it takes.

The Makefile calls these. What a user sets there (PROFILE, NB, SET, WITHOUT, N) arrives in the environment, so that no shell
reads it a second time. Commands import what they need themselves: a spelling mistake should not cost seconds.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from helpers.channels.stacks import StackError, load_stack, load_stacks
from helpers.reporting import reproduce as report
from helpers.reporting.params import ROOT, ParameterError, settings_of
from helpers.study.files import DataError, write_text

COORDINATES = ("template", "view", "slice", "authority", "source_order", "readout", "state", "layout", "assessed", "wave")


def _setting(o):
    from helpers.lab import setting_of

    return setting_of(o.profile, getattr(o, "first", None))


def _reproduce(o):
    page = report.reproduce(o.profile, only=o.nb, setting=o.set, without=o.without.split(),
                            source=os.environ.get("PUBMEDQA", ""), count=os.environ.get("N"))  # fmt: skip
    print(f"The report is up to date: {_shown(page)}")


def _shown(path):
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def _report(o):
    from helpers.reporting import site

    folder = ROOT / settings_of(o.profile).OUTPUT
    print(f"{_shown(folder)}/index.html: {len(site.build(folder, o.profile))} notebooks.")


def _execute(o):
    listed = not o.only and o.name in settings_of(o.profile).NOTEBOOKS
    jobs = report.plan(o.profile, only="" if listed else o.name, setting=o.set)
    try:
        next(job for job in jobs if job.notebook == o.name).run()
    except KeyboardInterrupt:  # the command that started this one was interrupted, too, and says so
        raise report.Stopped(130) from None


def _plan(o):
    from helpers.asking.forecast import forecasts, print_plan

    setting = _setting(o)
    print_plan(forecasts(setting.chosen(o.sections), setting), setting)


def _record(o):
    from helpers.asking.budget import Budget
    from helpers.asking.record import export, record

    setting = _setting(o)
    try:
        asyncio.run(record(setting, o.sections, budget=Budget(o.calls, o.money)))
    finally:
        export(setting)


def _export(o):
    from helpers.asking.record import export

    export(_setting(o))


def _verify(o):
    from helpers.asking.verify import verify

    outcome = asyncio.run(verify(_setting(o), o.count))
    folder = ROOT / settings_of(o.profile).OUTPUT
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "verify.json", json.dumps(outcome, indent=1) + "\n")
    print("\n".join(f"{k}: {v:.4g}" if isinstance(v, float) else f"{k}: {v}" for k, v in outcome.items()))


def _why(o):
    from helpers.asking.why import print_why

    wanted = {name: getattr(o, name) for name in COORDINATES if getattr(o, name) is not None}
    print_why(_setting(o), o.section, o.trajectory, wanted, o.most)


def _stats(o):
    from helpers.asking.why import stats

    found = stats(ROOT / settings_of(o.profile).RECORDINGS, load_stacks())
    print(found.to_string() if len(found) else f"no recordings in {settings_of(o.profile).RECORDINGS}.")


def _probe(o):
    from helpers.asking.probe import show_probe

    asyncio.run(show_probe(load_stack(o.name), ROOT / settings_of(o.profile).RECORDINGS))


def _model(o):
    from helpers.asking.embedded import fetched

    print(fetched(load_stack(o.name)))


def _clean_sources(o):
    """Git strips the outputs of source notebooks, so that working in JupyterLab leaves no trace in them."""
    kernel = ("version", "codemirror_mode", "file_extension", "mimetype", "nbconvert_exporter", "pygments_lexer")
    keys = " ".join(["metadata.widgets", *(f"metadata.language_info.{name}" for name in kernel)])
    strip = f"exec .venv/bin/python -m nbstripout --keep-id --extra-keys \"{keys}\""
    strip = f"sh -c 'if [ -x .venv/bin/python ]; then {strip}; else exec cat; fi'"
    if (ROOT / ".git").exists():
        subprocess.run(["git", "config", "filter.outputs.clean", strip], cwd=ROOT, check=False)


def _positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


_OPTIONS = {  # name: how argparse takes it; a default in capitals is read from the environment
    "profile": {"default": "PROFILE", "help": "a folder of params/"},
    "nb": {"default": "NB", "help": "one notebook by its name"},
    "set": {"default": "SET", "help": "NAME=value texts in one"},
    "without": {"default": "WITHOUT", "help": "notebooks that are left out"},
    "only": {"action": "store_true", "help": "--set is meant for this notebook alone"},
    "sections": {"nargs": "*", "default": [], "help": "sections by name; all of them without it"},
    "first": {"type": _positive, "default": "N", "help": "only the first so many trajectories"},
    "count": {"type": _positive, "default": "N", "help": "cells to ask again"},
    "calls": {"type": int, "help": "most calls, for views and answers"},
    "money": {"type": float, "help": "most money, in the prices' currency"},
    "section": {"default": "01_global_replay"},
    "trajectory": {"help": "trajectory_id; all without it"},
    "most": {"type": int, "default": 20, "help": "cells that are shown at most"},
    **{name: {"type": int} if name in ("state", "layout", "assessed", "wave") else {} for name in COORDINATES},
}
_DEFAULTS = {"PROFILE": "embedded", "NB": "", "SET": "", "WITHOUT": "", "count": 64}
_COMMANDS = {  # name: (call, what it does, its options)
    "reproduce": (_reproduce, "execute what is out of date and write the report", ("nb", "set", "without")),
    "report": (_report, "write the pages from the notebooks that are executed already", ()),
    "execute": (_execute, "execute one notebook, whether it is out of date or not", ("name", "set", "only")),
    "plan": (_plan, "what is planned, recorded and still to ask, with tokens, money and time", ("sections", "first")),
    "record": (_record, "generate views and ask what is missing; stop and go on at any time", ("sections", "first", "calls", "money")),
    "export": (_export, "write what is in the journals to the Parquet files", ()),
    "verify": (_verify, "ask a sample of the recorded questions again and compare", ("count",)),
    "why": (_why, "why cells are not found among the recordings", ("section", "trajectory", "most", *COORDINATES)),
    "stats": (_stats, "recordings, tokens and money per stack, wave and section", ()),
    "probe": (_probe, "three calls that show what an evaluator's endpoint can do", ("name",)),
    "model": (_model, "fetch and verify the model file of an embedded evaluator", ("name",)),
    "clean-sources": (_clean_sources, "let git strip the outputs of source notebooks", ()),
}


def _parser():
    parser = argparse.ArgumentParser(prog="python -m helpers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for command, (call, summary, options) in _COMMANDS.items():
        added = commands.add_parser(command, help=summary, description=summary)
        added.set_defaults(call=call)
        for name in ("profile", *options):
            if name == "name":
                added.add_argument(name)
                continue
            how = dict(_OPTIONS[name])
            if (variable := str(how.get("default"))).isupper():
                default = _DEFAULTS.get(name, _DEFAULTS.get(variable))
                how["default"] = os.environ.get(variable, default) or ("" if name == "profile" else default)
            added.add_argument(f"--{name.replace('_', '-')}", **how)
    return parser


def main(arguments=None):
    """Run one command; returns its exit code, after one sentence where it could not be done."""
    options = _parser().parse_args(arguments)
    try:
        options.call(options)
    except report.Stopped as stopped:
        return stopped.args[0]
    except (ParameterError, DataError, StackError, ValueError) as error:
        return _say(f"error: {error}", 2 if isinstance(error, ParameterError) else 1)
    except KeyboardInterrupt:
        return _say("stopped; everything answered so far is recorded, and the same command goes on from here.", 130)
    except OSError as error:
        where = error.filename or Path("outputs")
        return _say(f"error: {where}: {error.strerror or error}. Make it readable and its folder writable.", 1)
    except _stops() as error:
        return _say(f"error: {error}", 1)
    return 0


def _stops():
    """Errors of a run that say all there is to say; looked up only when there is one, for they load the client."""
    from helpers.asking.faults import RunStopped
    from helpers.reporting.execute import NotebookFailed

    return RunStopped, NotebookFailed


def _say(text, code):
    print(text, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
