"""Rebuild a run's report from its evidence alone: ``bin/plumbline-report artifacts/<run>``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

try:
    from ..console import screen_width
    from . import summary
    from .render import LATEST, write_report
except ModuleNotFoundError as error:
    sys.exit(
        f"plumbline-report: the Python package {error.name} was expected, it is not installed: run make venv first"
    )


def main(arguments: list[str] | None = None) -> int:
    """Write the report and print its summary. Exit status: 0 OK or WARN, 1 CRITICAL or UNKNOWN, 2 bad input."""
    parser = argparse.ArgumentParser(
        prog="plumbline-report", description="Rebuild report.html, report.md and junit.xml of a run from its evidence."
    )
    parser.add_argument(
        "run", nargs="?", default=f"artifacts/{LATEST}", type=Path, help="folder of the run (default: %(default)s)"
    )
    parser.add_argument("--quiet", action="store_true", help="print the verdict and the path of the page only")
    options = parser.parse_args(arguments)
    try:
        written = write_report(options.run.resolve())
    except OSError as error:
        print(f"plumbline-report: {error}", file=sys.stderr)
        return 2
    if not options.quiet:
        print("\n".join(summary.lines(written.report, screen_width())))
    print(f"Report: {written.html}")
    for problem in written.report.dropped:
        print(f"Damaged evidence: {problem}")
    print(summary.verdict(written.report))
    return 0 if written.report.status in ("OK", "WARN", "SKIPPED") else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
