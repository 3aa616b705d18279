"""``python -m tests.benchmarks``: all figures as a table, also in outputs/bench/bench.csv.

Everything runs by default, in a few minutes; ``--only`` picks parts, ``--scale 0.1`` makes them all smaller.
The trie ratio needs the embedded evaluator smollm2-135m, which is fetched (120 MB) where it is not there.
"""

import argparse
import sys
from pathlib import Path

from helpers.channels.stacks import StackError
from tests.benchmarks import acquisition, as_frame, reduction, trie

PARTS = ("acquisition", "second-run", "reduction", "bootstrap", "memory", "trie")


def figures(part, scale=1.0, trajectories=1):
    """The figures of one part; ``scale`` multiplies how much is asked, drawn or loaded."""
    return {
        "acquisition": lambda: acquisition.rates(max(100, int(4000 * scale))),
        "second-run": lambda: acquisition.second_run(max(1, int(20 * scale))),
        "reduction": lambda: reduction.load_and_reduce(int(100_000 * scale)),
        "bootstrap": lambda: reduction.paper_bootstrap(int(10_000 * scale)),
        "memory": lambda: reduction.large_bootstrap(int(1_000_000 * scale), int(100_000 * scale)),
        "trie": lambda: trie.ratios(trajectories),
    }[part]()


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--scale", type=float, default=1.0, help="0.1 asks, draws and loads a tenth")
    parser.add_argument("--trajectories", type=int, default=1, help="trajectories of the trie ratio")
    parser.add_argument("--folder", default="outputs/bench")
    options = parser.parse_args(arguments)
    found = []
    try:
        for part in options.only:
            print(f"{part} …", flush=True)
            found += figures(part, options.scale, options.trajectories)
    except StackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    table = as_frame(found)
    Path(options.folder).mkdir(parents=True, exist_ok=True)
    table.to_csv(Path(options.folder) / "bench.csv", index=False)
    print(table.to_string(index=False, formatters={"value": "{:,.4g}".format}))
    print(f"\nwritten to {options.folder}/bench.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())
