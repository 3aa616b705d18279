"""Make a profile's report: execute what is out of date, put back what was changed, and write the pages."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from helpers.reporting import manifest
from helpers.reporting.params import (
    ROOT,
    ParameterError,
    Settings,
    declared,
    merged,
    notebook_source,
    notebooks,
    settings_of,
    split_settings,
    suggestion,
)
from helpers.study.files import write_text

# What executes notebooks and writes pages takes seconds to import, so it is imported where it is needed.

_OVERVIEW = "00_overview"  # reads the tables that all the others write, so it runs last


@dataclass(frozen=True)
class Job:
    """One notebook of a report: what it runs with and where it goes."""

    profile: str
    notebook: str
    setting: str
    only: bool
    folder: Path
    values: dict
    settings: Settings
    root: Path = ROOT

    @property
    def source(self):
        """Path of the notebook without outputs."""
        return notebook_source(self.notebook, self.root)

    @property
    def output(self):
        """Path of the executed notebook."""
        return self.folder / ("tools" if self.source.parent.name == "tools" else "") / f"{self.notebook}.ipynb"

    @property
    def stamp(self):
        """File that remembers what the notebook was last made from."""
        place = self.folder.relative_to(self.root) if self.folder.is_relative_to(self.root) else self.folder
        return self.root / ".work" / str(place).strip("/").replace("/", "-") / f"{self.notebook}.made"

    def made_from(self):
        """A hash of what the notebook is made from now; the overview is made from the other tables, too."""
        tables = sorted(self.folder.glob("*.csv")) + sorted(self.folder.glob("*.json"))
        read = [p for p in tables if self.notebook == _OVERVIEW and not p.name.startswith("00_") and p.name != manifest.FILE]
        parts = [manifest.inputs(self.source, self.values, self.settings, self.root), *(p.read_bytes().hex() for p in read)]
        return manifest.digest("\n".join(parts))

    def up_to_date(self):
        """Whether nothing that it is made from has changed, nor what it wrote."""
        made = self.output.exists() and self.stamp.exists() and self.stamp.read_text() == self.made_from()
        return made and (self.output.parent != self.folder or manifest.intact(self.notebook, self.folder))

    def remember(self):
        """Note what the notebook was made from and what it wrote."""
        self.stamp.parent.mkdir(parents=True, exist_ok=True)
        if self.output.parent == self.folder:
            manifest.record(self.notebook, self.folder, manifest.told(self.values, self.settings))
        write_text(self.stamp, self.made_from())

    def run(self):
        """Execute the notebook in this process; NotebookFailed says what went wrong."""
        from helpers.reporting.execute import execute

        given = split_settings(self.setting)
        default = declared(self.source)
        cell = {name: value for name, value in self.values.items() if value != default.get(name)}
        settings = {k: v for k, v in given.items() if k in Settings.model_fields}
        for name in sorted(cell.keys() - given.keys() - {"PROFILE"}):
            print(f"{Path('params', self.profile)}/{self.notebook}.yml sets {name} = {cell[name]!r}.", flush=True)
        return execute(self.source, self.output, cell, settings=settings, folder=self.folder, root=self.root)


def plan(profile, *, only="", setting="", without=(), root=ROOT):
    """The jobs of a report, each checked before anything runs.

    Parameters
    ----------
    only : str, one notebook by its name; all of the profile without it
    setting : str, ``NAME=value`` texts from the command line
    without : names of notebooks that are left out

    Raises
    ------
    ParameterError with the names that exist
    """
    known = notebooks(root)
    usual = settings_of(profile, root=root)
    names = [only] if only else [n for n in usual.NOTEBOOKS if n not in without]
    for name in [*names, *without]:
        if name not in known:
            raise ParameterError(f"no notebook {name!r} in notebooks/.{suggestion(name, known)} There are: {', '.join(known)}.")
    if not names:
        raise ParameterError(f"params/{profile}/common.yml: NOTEBOOKS lists no notebook to execute.")
    given = split_settings(setting)
    found = {n: (merged(profile, n, given, shared=not only, root=root), merged(profile, n, root=root)) for n in names}
    tweaked = any(manifest.told(*now) != manifest.told(*before) for now, before in found.values())
    folder = root / given.get("OUTPUT", f"{manifest.TWEAKED}/{only or Path(profile).name}" if tweaked else usual.OUTPUT)
    return [Job(profile, n, setting, bool(only), folder, *now, root) for n, (now, _) in found.items()]


def _prepare(settings, source, count, root=ROOT):
    """Make tasks and library from a PubMedQA file, for a profile whose data come from one.

    Another file or another number makes them again; without a file the one named before is meant.
    """
    from helpers.study import pubmedqa

    note = root / ".work" / "pubmedqa" / "source"
    if source and not Path(source).is_file():
        raise ParameterError(f"{source}: no such file; PUBMEDQA is a pqal_dev.json or ori_pqal.json.")
    if not source and not note.exists():
        raise ParameterError("say which questions: PUBMEDQA=<pqal_dev.json or ori_pqal.json> N=3")
    if count and not count.isdecimal():
        raise ParameterError(f"N = {count!r}; it is a number of questions, such as N=3.")
    wanted = f"{count or 3} {source}" if source else note.read_text()
    if not note.exists() or note.read_text() != wanted or not (root / settings.TASKS).exists():
        number, path = wanted.split(" ", 1)
        tasks = pubmedqa.build(path, int(number), (root / settings.TASKS).parent)
        print(f"{len(tasks)} tasks from {path}. Traces, views and scores take about {len(tasks) * 8} minutes on two cores; "
              "a stopped run goes on where it was.", flush=True)  # fmt: skip
        note.parent.mkdir(parents=True, exist_ok=True)
        write_text(note, wanted)


def reproduce(profile, *, only="", setting="", without=(), source="", count=None, root=ROOT):
    """Execute what is out of date of a report and write its pages; returns the path to look at first.

    ``source`` and ``count`` are what :func:`_prepare` takes; the other parameters those of :func:`plan`.
    """
    jobs = plan(profile, only=only, setting=setting, without=without, root=root)
    if jobs[0].settings.PREPARE:
        _prepare(jobs[0].settings, source, count, root)
        _run(plan(profile, only="freeze_traces", root=root))
    last = [job for job in jobs if job.notebook == _OVERVIEW]
    done = _run([job for job in jobs if job.notebook != _OVERVIEW]) + _run(last)
    for job in done:  # what they asked meanwhile is known to all of them
        job.remember()
    folder = jobs[0].folder
    if only and jobs[0].output.parent != folder:
        return jobs[0].output
    pages = folder / "index.html"
    if done or not manifest.intact(manifest.PAGES, folder):
        from helpers.reporting import site

        site.build(folder, profile)
        manifest.record(manifest.PAGES, folder)
    return pages


def _run(jobs):
    """Execute those jobs that are out of date, two at a time where nothing is asked; returns them."""
    todo = [job for job in jobs if not job.up_to_date()]
    live = any((job.values.get("ACQUIRE") or job.settings.ACQUIRE) != "recorded" for job in todo)
    with ThreadPoolExecutor(1 if live else min(2, os.cpu_count() or 1)) as pool:
        running = [pool.submit(_in_a_process_of_its_own, job) for job in todo]
        try:
            for each in running:
                each.result()
        except BaseException:
            for each in running:
                each.cancel()
            raise
        finally:
            for job, each in zip(todo, running, strict=True):
                if not each.cancelled() and not each.exception():
                    job.remember()
    return todo


def _in_a_process_of_its_own(job):
    print(f"Executing {job.notebook}", flush=True)
    command = [sys.executable, "-m", "helpers", "execute", job.notebook, "--profile", job.profile, "--set", job.setting]
    command += ["--only"] if job.only else []
    if code := subprocess.run(command, cwd=job.root).returncode:
        raise Stopped(code)


class Stopped(Exception):
    """A notebook did not run to its end; what to say about it has been said. Holds the exit code."""
