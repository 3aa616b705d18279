"""The whole report on a simulated study: ``python -m tests.rehearsal.smoke`` plants effects, answers over HTTP, and reproduces."""

import os
import secrets
import sys

from helpers.__main__ import main
from helpers.reporting.params import ROOT
from tests.rehearsal.endpoint import Endpoint, read_answers
from tests.rehearsal.simulate import write_study

FOLDER = ROOT / "outputs" / "smoke" / "data"


def smoke(arguments=()):
    """Make the study where it is not there yet, serve its answers on 127.0.0.1, and write its report; the exit code."""
    if not (FOLDER / "answers.jsonl").exists():
        write_study(FOLDER)
    os.environ["ASV_SMOKE_KEY"] = secrets.token_hex(16)
    with Endpoint(port=8808, answers=read_answers(FOLDER / "answers.jsonl")):
        return main(["reproduce", "--profile", "smoke", *arguments])


if __name__ == "__main__":
    sys.exit(smoke(sys.argv[1:]))
