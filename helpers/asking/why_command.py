"""The command line of :mod:`helpers.asking.why`: counts of recordings, and why cells are not found."""

import argparse
import sys
from pathlib import Path

from helpers.asking.why import stats, why, without_recording
from helpers.channels import sections
from helpers.channels.plan import load_study
from helpers.channels.stacks import STACKS, StackError, load_stacks
from helpers.reporting.params import ParameterError, check_profile, read_values
from helpers.study.files import DataError
from helpers.study.traces import STEPS


def section_plan(section, ids, stack, second_stack=None):
    """A section's plan by the name of its function in ``helpers.channels.sections``."""
    if section == "bridge":
        if second_stack is None:
            raise DataError("section bridge asks two stacks; name the other one with --second-stack.")
        return sections.bridge(ids, stack, second_stack)
    if section == "components":  # chosen by their gap from all of these
        return sections.components([(name, step) for name in ids for step in range(1, len(STEPS) + 1)], stack)
    if section not in SECTIONS:
        raise DataError(f"no section {section!r}; there are {', '.join(SECTIONS)}.")
    return sections.BY_NAME[section](ids, stack)


SECTIONS = (*sections.BY_NAME, "components")


def _parser():
    parser = argparse.ArgumentParser(prog="python -m helpers.asking.why_command", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    counted = actions.add_parser("stats", help="recordings, tokens and money per stack, wave and section")
    asked = actions.add_parser("why", help="why cells are not found")
    for each in (counted, asked):
        each.add_argument("--profile", default="embedded", help="a folder of params/; what is not named comes from it")
        each.add_argument("--folder", help="the recordings")
        each.add_argument("--stacks", default=STACKS)
    asked.add_argument("--section", default="global_replay", choices=SECTIONS)
    for name in ("stack", "second-stack", "tasks", "trajectories", "views"):
        asked.add_argument(f"--{name}")
    asked.add_argument("--trajectory", help="trajectory_id; all without it")
    asked.add_argument("--most", type=int, default=20, help="cells that are shown at most")
    for name in ("template", "view", "slice", "authority", "source-order", "readout"):
        asked.add_argument(f"--{name}")
    for name in ("state", "layout", "assessed", "wave"):
        asked.add_argument(f"--{name}", type=int)
    return parser


def _wanted_cells(options, study, stacks):
    """The plan rows that the command line describes."""
    for name in filter(None, (options.stack, options.second_stack)):
        if name not in stacks:
            raise StackError(f"unknown stack {name!r}; there are {', '.join(stacks)}.")
    ids = [options.trajectory] if options.trajectory else list(study.trajectories)
    if ids[0] not in study.trajectories:
        raise DataError(
            f"no trajectory {ids[0]!r} in {options.trajectories}; there are {', '.join(study.trajectories)}."
        )
    plan = section_plan(options.section, ids, options.stack, options.second_stack)
    if options.wave is not None:
        plan = plan.assign(wave=options.wave)
    for name in ("state", "template", "view", "slice", "authority", "source_order", "readout", "layout", "assessed"):
        value = getattr(options, name)
        plan = plan if value is None else plan[plan[name] == value]
    if plan.empty:
        raise DataError(
            f"section {options.section} plans no such cell; leave out a coordinate or name another section."
        )
    return plan.drop_duplicates()


def _print_why(options):
    stacks = load_stacks(options.stacks)
    views = options.views if options.views and Path(options.views).exists() else None
    study = load_study(options.tasks, options.trajectories, views)
    plan = _wanted_cells(options, study, stacks)
    missing = without_recording(plan, study, stacks, options.folder)
    print(f"{len(plan)} cells, {len(missing)} of them missing.")
    for row, text in why(missing.head(options.most), study, stacks, options.folder):
        channel = f"{row.template}/{row.view}, {row.readout}"
        cell = f"{row.trajectory_id} state {row.state}, {channel}, layout {row.layout}, wave {row.wave}"
        print(f"- {cell}: {text}")


def main(arguments=None):
    options = _parser().parse_args(arguments)
    try:
        _complete(options)
        if options.action == "why":
            _print_why(options)
        else:
            found = stats(options.folder, load_stacks(options.stacks))
            print(found.to_string() if len(found) else f"no recordings in {options.folder}.")
    except (DataError, StackError, ParameterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _complete(options):
    """What the command line does not name comes from the profile; a profile whose views are not written has none."""
    values = read_values(check_profile(options.profile) / "common.yml")
    defaults = {"folder": values["RECORDINGS"]}
    if options.action == "why":
        second = ("second_stack",) if options.section == "bridge" else ()
        named = ("stack", "tasks", "trajectories", "views", *second)
        defaults |= {name: values.get(name.upper()) for name in named}
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)


if __name__ == "__main__":
    sys.exit(main())
