"""Write a run's report beside its evidence."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .. import screen
from ..evidence import FILE_MODE, evidence_path
from . import html, junit, markdown, soak_plots
from .model import Report, load
from .plots import draw

LATEST = "latest"
"""The link beside the runs that leads to the last one."""


@dataclass(frozen=True)
class Written:
    """A report and its files."""

    report: Report
    html: Path
    markdown: Path
    junit: Path


def write_report(directory: Path) -> Written:
    """Read the evidence of a run and write report.html, report.md, junit.xml and the screen of each machine into its folder.

    Raises FileNotFoundError where the folder holds no evidence, OSError where a file cannot be written.
    """
    if not directory.is_dir():
        raise FileNotFoundError(f"a run's folder was expected at {directory}, there is none")
    if not any(directory.glob("*.jsonl")):
        raise FileNotFoundError(
            f"evidence (*.jsonl) was expected in {directory}, there is none: no gate ran in this run"
        )
    report = load(directory)
    written = Written(report, directory / "report.html", directory / "report.md", directory / "junit.xml")
    _write(written.markdown, markdown.render(report))
    _write(written.junit, junit.render(report))
    for host in report.hosts:
        if host.machine:
            path = evidence_path(str(directory.parent), directory.name, host.name).with_suffix(".txt")
            _write(path, "\n".join(screen.lines(host.screen, host.name, host.status)) + "\n")
    try:
        plots, note = draw(report) + soak_plots.draw(report), ""
    except ModuleNotFoundError as error:  # a controller without the requirements, such as an execution environment
        plots, note = [], f"The Python package {error.name} is not installed on the controller, so nothing is drawn."
    _write(written.html, html.render(report, plots, note))
    return written


def link_latest(directory: Path) -> None:
    """Let ``latest`` beside the run's folder lead to it; without links on the file system there is none."""
    link = directory.parent / LATEST
    if link.exists() and not link.is_symlink():
        return
    with contextlib.suppress(OSError):
        fresh = directory.parent / f".{LATEST}.{os.getpid()}"
        fresh.symlink_to(directory.name)
        fresh.replace(link)


def _write(path: Path, text: str) -> None:
    """Replace a file in one step, so that nobody reads half a report."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
        Path(name).chmod(FILE_MODE)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
