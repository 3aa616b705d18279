"""The environment check: what is missing is named before anything is installed."""

import subprocess
import sys
from importlib.metadata import version

from tests import environment
from tests.test_project import ROOT, exact, requirements


def test_the_environment_check_reads_the_versions_that_packaging_reads():
    assert environment.pinned() == {r.name: exact(r.specifier) for r in requirements()}


def test_the_environment_check_names_what_is_missing_and_what_has_another_version():
    wanted = {"pytest": version("pytest"), "packaging": "1.0", "no-such-package": "2.0"}
    assert environment.unmet(wanted) == [
        f"packaging is {version('packaging')}; 1.0 is needed.",
        "no-such-package is not installed.",
    ]


def test_the_environment_check_runs_before_anything_is_installed(tmp_path):
    """With -S -I there is no site-packages: standard library only."""
    script = ROOT / "helpers" / "environment.py"
    done = subprocess.run([sys.executable, "-I", "-S", str(script)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "numpy is not installed." in done.stderr
