"""The report is made from evidence alone, however damaged, and nothing of a machine's words becomes markup."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy
import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import evidence
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.latency_statistics import percentile
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.report import (
    junit,
    markdown,
    model,
    plots,
    records,
    summary,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.report.render import (
    link_latest,
    write_report,
)
from junitparser import Failure, JUnitXml, Skipped

RULES = {
    "memory": {"kind": "fraction_of_limit", "warn": 0.75, "fail": 0.6, "unit": "B/s", "title": "memory bandwidth"},
    "end_to_end_latency_p50": {"kind": "maximum", "fail": 3.0, "unit": "s"},
    "end_to_end_latency_p99": {"kind": "maximum", "fail": 5.0, "unit": "s"},
    "completion": {"kind": "equals", "expected": True},
    "floor": {"kind": "minimum", "fail": 2e9, "unit": "B/s"},
    "driver": {"kind": "version_at_least", "expected": "550"},
    "copy": {"kind": "record"},
}
EVIL = '<script>alert("x")</script>'


class Run:
    """A run's folder, written as the gate and the callback write it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, host: str, kind: str, stage: str = "accept", **fields: object) -> None:
        head = evidence.envelope(
            kind, run="r", host=host, stage=stage, task=str(fields.pop("task", "")), check_mode=False
        )
        evidence.append(self.directory / f"{host.replace('/', '_')}.jsonl", [{**head, **fields}])

    def check(self, host: str, name: str, stage: str = "accept", **measurement: object) -> None:
        check = judge({"name": name, "scope": "host", **measurement}, RULES)
        self.write(host, "check", stage, **check.record())

    def memory(self, host: str, fraction: float, **fields: object) -> None:
        self.check(host, "memory", value=204.8e9 * fraction, unit="B/s", limit=204.8e9, **fields)

    @property
    def report(self) -> model.Report:
        return model.load(self.directory)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "run").mkdir()
    return Run(tmp_path / "run")


class Page(HTMLParser):
    """The tags, texts and outside references of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.outside: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for key, value in attrs:
            if key == "id":
                self.ids.append(str(value))
            if key in ("src", "href") and not str(value).startswith("#"):
                self.outside.append(str(value))

    def handle_data(self, data: str) -> None:
        self.text += data


def page(run: Run) -> Page:
    return Page(write_report(run.directory).html.read_text())


def test_the_worst_check_is_the_status_of_the_run(run: Run) -> None:
    run.memory("node1", 0.8)
    assert (run.report.status, run.report.headline) == ("OK", "node1 passed")
    run.memory("node1", 0.7, scope="numa1")
    assert (run.report.status, run.report.headline) == ("WARN", "node1 passed, 1 check with little to spare")
    run.memory("node1", 0.3, scope="numa2")
    assert (run.report.status, run.report.headline) == ("CRITICAL", "1 of 3 checks did not pass on node1")
    run.memory("node2", 0.8)
    assert run.report.headline == "1 of 2 hosts did not pass"
    assert [host.name for host in run.report.hosts] == ["node1", "node2"]  # worst first


def test_nothing_judged_is_never_ok(run: Run) -> None:
    run.write("node1", "stage", seconds=1.0, changed=0, failed=0)
    assert run.report.status == "UNKNOWN"
    assert "no gate has judged anything" in summary.verdict(run.report)


def test_a_run_that_only_stages_is_not_judged_and_never_ok(run: Run) -> None:
    run.write("node1", "stage", "bios", seconds=1.0, changed=1, failed=0)
    report = run.report
    assert (report.status, report.headline) == ("NOT JUDGED", "Nothing has been judged yet")
    assert summary.verdict(report) == "NOT JUDGED: 1 change staged, no gate ran; playbooks/verify.yml judges"
    found = page(run)
    assert "UNKNOWN" not in found.text.split("OK: as required.")[0]  # the legend explains every status
    run.write("node1", "stage", "kernel", seconds=1.0, changed=0, failed=0)
    run.memory("node2", 0.8)
    assert run.report.status == "NOT JUDGED"  # one host that passed does not speak for the other
    assert run.report.headline == "Nothing has been judged on 1 of 2 hosts yet"
    run.memory("node2", 0.8, scope="numa1", error="gcc is missing")
    assert run.report.status == "UNKNOWN"


@pytest.mark.parametrize(
    ("stages", "changed", "check_mode", "words"),
    [
        (("kernel",), 0, False, "NOT JUDGED: nothing had to be staged, no gate ran; playbooks/verify.yml judges"),
        (
            ("bios", "kernel"),
            1,
            True,
            "NOT JUDGED: 2 changes would be staged, no gate ran; playbooks/verify.yml judges (check mode)",
        ),
        (("preflight",), 0, False, "NOT JUDGED: preflight found no fault, no gate ran"),
        (
            ("bios_backup",),
            1,
            False,
            "NOT JUDGED: no machine was changed, and no gate belongs to bios_backup",
        ),
        (
            ("bios_restore",),
            1,
            False,
            "NOT JUDGED: 1 change staged, no gate ran; playbooks/bios_diff.yml with bios_diff_golden_file judges",
        ),
        (
            ("bios_restore", "bios_diff"),
            1,
            False,
            "NOT JUDGED: 2 changes staged, no gate ran; playbooks/bios_diff.yml with bios_diff_golden_file judges",
        ),
        (("bios", "accept"), 1, False, "UNKNOWN: no gate has judged anything"),  # accept should have judged
    ],
)
def test_what_a_run_without_a_gate_says(
    run: Run, stages: tuple[str, ...], changed: int, check_mode: bool, words: str
) -> None:
    for stage in stages:
        head = evidence.envelope("stage", run="r", host="node1", stage=stage, task="", check_mode=check_mode)
        evidence.append(run.directory / "node1.jsonl", [{**head, "seconds": 1.0, "changed": changed, "failed": 0}])
    assert summary.verdict(run.report) == words


def test_staging_that_failed_or_broke_off_is_not_called_unjudged(run: Run) -> None:
    run.write("node1", "restart", "bios", how="power cycle", seconds=4.0)
    assert run.report.status == "UNKNOWN"
    run.write("node1", "failure", "bios", task="t", message="m", unreachable=False, handled=False)
    run.write("node1", "stage", "bios", seconds=1.0, changed=1, failed=1)
    assert run.report.status == "CRITICAL"


def test_a_stage_that_judges_for_others_shows_what_it_judged(run: Run) -> None:
    run.write("node1", "stage", "bios", seconds=1.0, changed=1, failed=0)
    run.check("node1", "driver", "bios", value="560")
    run.check("node1", "driver", "kernel", value="500")
    run.check("node1", "driver", "kernel", scope="two", skipped="container")
    run.write("node1", "stage", "verify", seconds=2.0, changed=0, failed=1)
    run.memory("node1", 0.8)
    run.write("node1", "stage", "accept", seconds=2.0, changed=0, failed=0)
    stages = run.report.hosts[0].stages
    assert {name: stage.result for name, stage in stages.items()} == {
        "bios": "OK",
        "verify": "CRITICAL",
        "kernel": "CRITICAL",
        "accept": "OK",
    }
    verify = stages["verify"]
    assert (verify.elsewhere, verify.counts) == (["bios", "kernel"], {"CRITICAL": 1, "OK": 1, "SKIPPED": 1})
    assert stages["accept"].elsewhere == []
    found = " ".join(page(run).text.split())
    assert "verify CRITICAL 1 CRITICAL, 1 OK, 1 SKIPPED of bios, kernel" in found
    assert "nothing to judge" not in found


def test_a_run_began_when_its_id_says_or_its_first_stage_did(run: Run) -> None:
    run.write("node1", "stage", "survey", seconds=90.0, changed=1, failed=0)
    run.memory("node1", 0.8)
    report = run.report
    assert report.began is not None
    assert report.ended is not None
    assert 90 <= (report.ended - report.began).total_seconds() < 120
    named = model.build("20260101T000000Z", evidence.read_run(run.directory))
    assert named.began is not None
    assert named.began.isoformat() == "2026-01-01T00:00:00+00:00"
    text = markdown.render(report)
    assert "- 1 change, 0 restarts\n" in text
    assert f"- {named.began:%Y-%m-%d %H:%M:%S} to {report.ended:%Y-%m-%d %H:%M:%S} UTC" in markdown.render(named)


def test_a_next_step_in_words_is_not_set_as_code(run: Run) -> None:
    run.memory("node1", 0.3, scope="a", next_command="update it with the vendor's tool")
    run.memory("node1", 0.3, scope="b", next_command="dmidecode -t memory")
    write_report(run.directory)
    text, marked = (run.directory / "report.html").read_text(), (run.directory / "report.md").read_text()
    assert "<code>dmidecode -t memory</code>" in text
    assert "update it with the vendor&#39;s tool</p>" in text
    assert "- Next: `dmidecode -t memory`" in marked
    assert "- Next: update it with the vendor's tool" in marked


def test_all_skipped_is_not_passed(run: Run) -> None:
    run.check("node1", "driver", skipped="no NVIDIA device")
    assert (run.report.status, run.report.headline) == (
        "SKIPPED",
        "Every check was skipped: nothing here could be judged",
    )


def test_a_failed_task_is_critical_until_its_stage_goes_through(run: Run) -> None:
    run.memory("node1", 0.8)
    run.write(
        "node1",
        "failure",
        "engine",
        task="The engine is installed",
        message="no space left",
        unreachable=False,
        handled=False,
    )
    run.write("node1", "stage", "engine", seconds=3.0, changed=0, failed=1)
    report = run.report
    assert (report.status, report.hosts[0].stages["engine"].status) == ("CRITICAL", "CRITICAL")
    assert [problem.what for problem in report.problems()] == ["task: The engine is installed"]
    assert "no space left" in page(run).text
    assert records.Failure("node1", "engine", "", "the run was ended early").what == "the run"
    run.write("node1", "failure", "engine", task="The engine works", message="no GPU", unreachable=False, handled=False)
    run.write("node1", "stage", "engine", seconds=3.0, changed=0, failed=1)  # resumed under the same run id
    assert [problem.reason for problem in run.report.problems()] == ["no GPU"]
    run.write("node1", "stage", "engine", seconds=9.0, changed=2, failed=0)
    assert (run.report.status, run.report.hosts[0].changed) == ("OK", 2)


def test_a_rescued_failure_stops_nothing(run: Run) -> None:
    run.memory("node1", 0.8)
    run.write("node1", "failure", message="m", unreachable=False, handled=True)
    assert run.report.status == "OK"


def test_the_last_judgement_counts_and_the_earlier_ones_are_told(run: Run) -> None:
    run.memory("node1", 0.3)
    run.memory("node1", 0.8)
    (check,) = run.report.checks
    assert (check.status, check.earlier) == ("OK", ["CRITICAL"])
    assert "Judged before in this run: CRITICAL" in page(run).text


def test_restarts_are_counted(run: Run) -> None:
    run.memory("node1", 0.8)
    run.write("node1", "restart", "restart", how="power cycle", seconds=412.0)
    assert run.report.restarts == 1
    assert "Restarts: 1" in summary.lines(run.report)


def test_the_page_needs_nothing_beside_it_and_no_script(run: Run) -> None:
    run.memory("node1", 0.8)
    run.check("node1", "end_to_end_latency_p99", value=4.0, unit="s", samples=[1.0, 2.0, 4.0])
    found = page(run)
    assert "script" not in found.tags
    assert "link" not in found.tags
    assert found.outside == []
    assert found.tags.count("svg") == 3  # the mark, the latency, the bandwidth
    assert len(found.ids) == len(set(found.ids))


def test_what_a_machine_says_never_becomes_markup(run: Run) -> None:
    evil_host = f"node{EVIL}"
    run.check(
        evil_host,
        "completion",
        value=False,
        scope=EVIL,
        cause=EVIL,
        next_command=EVIL,
        conditions={"question": EVIL, "answer": EVIL, "endpoint": EVIL},
    )
    run.check(evil_host, "driver", value=EVIL, scope=EVIL, conditions={EVIL: EVIL})
    run.check(evil_host, "end_to_end_latency_p99", scope=EVIL, value=4.0, unit="s", samples=[1.0, 2.0, 4.0])
    run.memory(evil_host, 0.5, scope=EVIL, limit_source=EVIL)
    run.write(evil_host, "failure", EVIL, task=EVIL, message=EVIL, unreachable=False, handled=False)
    (run.directory / "damaged.jsonl").write_text(f'{{"kind": "{EVIL}"\n')
    found = page(run)
    assert "script" not in found.tags
    assert EVIL in found.text
    text = (run.directory / "report.md").read_text()
    assert "<script>" not in re.sub(r"`[^`]*`", "", text)  # within a code span, < is a letter
    ElementTree.parse(run.directory / "junit.xml")


@pytest.mark.parametrize("text", ["a|b", "*a*", "`a`", "[a](b)", "# a", "a\nb", "<b>", "a\\b", "a_b_c", "~~a~~"])
def test_markdown_shows_text_as_it_is(text: str) -> None:
    escaped = markdown.escape(text)
    assert "\n" not in escaped
    for mark in "|*`[]#<>_~":
        assert escaped.count(mark) == escaped.count("\\" + mark)


def test_a_next_command_survives_markdown(run: Run) -> None:
    run.memory("node1", 0.3, cause="a riser", next_command="lspci -vv | grep `cat x`")
    text = markdown.render(run.report)
    assert "Probable cause: a riser" in text
    assert "`` lspci -vv | grep `cat x` ``" in text


def test_junit_says_what_passed_and_why_not(run: Run) -> None:
    run.memory("node1", 0.8)
    run.memory("node1", 0.7, scope="numa1")
    run.memory("node1", 0.3, scope="numa2", cause="a DIMM is missing", next_command="dmidecode")
    run.check("node1", "memory", scope="numa3", error="gcc is missing")
    run.check("node1", "driver", skipped="no NVIDIA device\x1b[31m\x00")
    run.write("node1", "failure", task="x", message="no route\x08", unreachable=True, handled=False)
    write_report(run.directory)
    suites = JUnitXml.fromfile(str(run.directory / "junit.xml"))
    (suite,) = list(suites)
    cases = {case.name: case for case in suite}
    assert (suite.tests, suite.failures, suite.skipped, suite.errors) == (6, 3, 1, 0)
    assert (suites.tests, suites.failures) == (6, 3)
    assert cases["memory (host)"].is_passed
    assert cases["memory (numa1)"].is_passed
    assert cases["memory (numa1)"].system_out.startswith("WARN: ")
    failure = cases["memory (numa2)"].result[0]
    assert isinstance(failure, Failure)
    assert failure.type == "CRITICAL"
    assert "Probable cause: a DIMM is missing" in failure.text
    assert "Next: dmidecode" in failure.text
    assert cases["memory (numa3)"].result[0].type == "UNKNOWN"
    assert isinstance(cases["driver (host)"].result[0], Skipped)
    assert cases["the host can be reached"].result[0].message == "no route\ufffd"


def test_latencies_and_bandwidths_are_drawn_with_their_bounds(run: Run) -> None:
    samples = [1.0 + number / 100 for number in range(200)]
    run.check("node1", "end_to_end_latency_p50", value=1.99, unit="s", samples=samples)
    run.check("node1", "end_to_end_latency_p99", value=2.97, unit="s")
    run.memory("node1", 0.8)
    latency, bandwidth = plots.draw(run.report)
    assert latency.title == "end to end latency"
    assert "SLO P50" in latency.svg
    assert "SLO P99" in latency.svg
    assert "P99  2.97 s" in latency.svg
    assert "200 requests of host" in latency.caption
    assert "163.8 GB/s of 204.8 GB/s, 80 %" in bandwidth.svg
    assert "#0102" not in latency.svg + bandwidth.svg  # every placeholder became a colour of the page
    for plot in (latency, bandwidth):
        ElementTree.fromstring(plot.svg)


def test_percentiles_lie_on_the_line_that_is_drawn(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {}
    monkeypatch.setattr(plots, "_svg", lambda figure, name: drawn.setdefault(name, figure) and "")
    samples = [0.1, 0.2, 0.25, 0.9]
    run.check("node1", "end_to_end_latency_p99", value=percentile(samples, 99), unit="s", samples=samples)
    run.check("node1", "end_to_end_latency_p50", value=percentile(samples, 50), unit="s")
    plots.draw(run.report)
    axes = drawn["end_to_end_latency-host"].axes[0]
    curve = next(line for line in axes.lines if len(line.get_xdata()) == len(samples))
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert len(dots) == 2
    for dot in dots:
        (x,), (y,) = dot.get_data()
        assert numpy.interp(x, *curve.get_data()) == pytest.approx(y)
    # Each label stands where a rising line cannot be: left above its dot, or right below it.
    sides = {(text.get_ha(), text.get_va()) for text in axes.texts if text.get_text().startswith("P")}
    assert sides == {("right", "bottom"), ("left", "top")}


@pytest.mark.parametrize("hosts", [1, 5])
def test_a_bandwidth_without_a_limit_is_drawn_in_its_unit(run: Run, hosts: int) -> None:
    for number in range(hosts):
        run.memory(f"node{number}", 0.8)
        run.check(f"node{number}", "floor", value=45.9e9, unit="B/s")
    limited, unlimited = plots.draw(run.report)
    assert limited.title == "bandwidth and its limit"
    assert "percent of the limit" in limited.svg
    assert "floor" not in limited.svg
    assert unlimited.title == "bandwidth, no limit known"
    assert "GB/s" in unlimited.svg
    assert "percent" not in unlimited.svg
    assert "No limit of these is known" in unlimited.caption
    if hosts == 1:
        assert "45.9 GB/s, at least 2 GB/s" in unlimited.svg


def test_a_bound_far_away_is_told_in_words(run: Run) -> None:
    run.check("node1", "end_to_end_latency_p99", value=0.2, unit="s", samples=[0.1, 0.2])
    (latency,) = plots.draw(run.report)
    assert "Bounds beyond the plot: P99 5 s." in latency.caption


def test_without_matplotlib_there_is_a_report_that_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.memory("node1", 0.8)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "The Python package matplotlib is not installed" in page(run).text


def test_nothing_measured_is_not_drawn(run: Run) -> None:
    run.check("node1", "end_to_end_latency_p99", error="refused")
    run.check("node1", "end_to_end_latency_p50", value=float("nan"), unit="s", samples=[float("nan")])
    run.check("node1", "memory", error="gcc is missing")
    assert plots.draw(run.report) == []


def test_a_fleet_of_200_hosts(run: Run) -> None:
    for number in range(200):
        host = f"node{number:03d}"
        if number == 7:
            run.write(host, "failure", "survey", message=f"{host}: no route to host", unreachable=True, handled=False)
            continue
        fraction = 0.4 if number in (11, 12) else 0.8
        run.memory(host, fraction, cause=f"{host}: 6 of 8 channels populated")
        run.check(host, "end_to_end_latency_p99", value=2.0 + number / 1000, unit="s")
        run.check(host, "completion", value=True, conditions={"question": "2 + 2?", "answer": f"4, says {host}"})
    report = run.report
    assert report.headline == "3 of 200 hosts did not pass"
    assert report.host_counts == {"CRITICAL": 3, "OK": 197}
    assert [host.name for host in report.hosts[:3]] == ["node007", "node011", "node012"]
    memory, unreachable = report.problems()
    assert (memory.hosts, unreachable.hosts) == (["node011", "node012"], ["node007"])  # alike but for the host's name
    spread = next(spread for spread in report.spreads() if spread.title == "memory bandwidth")
    assert spread.statuses == {"CRITICAL": 2, "OK": 197}
    assert (spread.low, spread.high) == ("81.92 GB/s", "163.8 GB/s")
    written = write_report(run.directory)
    found = Page(written.html.read_text())
    assert found.tags.count("details") == 200
    assert "197 more" not in found.text
    assert written.html.stat().st_size < 3_000_000
    lines = summary.lines(report)
    assert len(lines) < 40
    assert any("2 CRITICAL, 197 OK" in line for line in lines)


def test_damaged_evidence_is_reported_and_never_ok(run: Run) -> None:
    run.memory("node1", 0.8)
    with (run.directory / "node1.jsonl").open("a") as stream:
        stream.write('{"schema": 1, "kind": "rumour"}\n{"schema": 1, "ki')
    (run.directory / "node2.jsonl").write_text("")
    report = run.report
    assert report.status == "UNKNOWN"
    assert len(report.dropped) == 3
    found = page(run)
    for words in ("is of the unknown kind 'rumour'", "is cut off", "node2.jsonl: the file is empty"):
        assert words in found.text
        assert words.split("'")[0].strip() in (run.directory / "report.md").read_text()
    assert len(list(JUnitXml.fromfile(str(run.directory / "junit.xml")))) == 2


def test_files_have_their_mode_and_are_replaced_whole(run: Run) -> None:
    run.memory("node1", 0.8)
    for _ in range(2):
        written = write_report(run.directory)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (written.html, written.markdown, written.junit)} == {0o640}
    assert sorted(path.name for path in run.directory.iterdir()) == [
        "junit.xml",
        "node1.jsonl",
        "report.html",
        "report.md",
    ]
    link_latest(run.directory)
    link_latest(run.directory)
    assert (run.directory.parent / "latest").resolve() == run.directory
    assert sorted(path.name for path in run.directory.parent.iterdir()) == ["latest", "run"]


@pytest.mark.parametrize(("fraction", "status"), [(0.8, 0), (0.7, 0), (0.3, 1)])
def test_the_command_line(run: Run, checkout: Path, fraction: float, status: int) -> None:
    run.memory("node1", fraction)
    done = subprocess.run(
        [checkout / "bin/plumbline-report", run.directory], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    assert done.stdout.splitlines()[-1] == summary.verdict(run.report)
    assert f"Report: {run.directory}/report.html" in done.stdout


def test_the_command_line_refuses_with_one_sentence(checkout: Path, tmp_path: Path) -> None:
    for folder, words in (
        (tmp_path / "none", "a run's folder was expected"),
        (tmp_path, "evidence (*.jsonl) was expected"),
    ):
        done = subprocess.run([checkout / "bin/plumbline-report", folder], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert words in done.stderr


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60])
def test_the_gate_table_fits_and_what_did_not_pass_is_told_in_full(run: Run, width: int) -> None:
    run.check("node1", "completion", value=True)
    run.check("node1", "end_to_end_latency_p50", value=2.0, unit="s", scope="http://127.0.0.1:8000/v1")
    why = "there is no SMBIOS table (/sys/firmware/dmi/tables/DMI): a container has none, and some virtual machines"
    run.memory("node1", 0.8, scope="numa1", skipped=why)
    cause = "6 of 8 channels are populated, so that a quarter of the bandwidth is missing whatever the settings are"
    command = "dmidecode -t memory | grep -E 'Locator|Size|Speed' | paste - - - - | sort | column -t -s ':'"
    run.memory("node1", 0.3, scope="numa0", cause=cause, next_command=command, limit_source="8 channels x 25.6 GB/s")
    run.write("node1", "failure", task="T " * 80, message="no space left\non /opt " + "word " * 60)
    lines = summary.lines(run.report, width)
    blank = lines.index("")
    assert max(map(len, lines[:blank])) <= width
    assert all(len(line) <= width or command in line for line in lines)
    assert any(line.startswith("accept  memory") for line in lines)  # the title, as in the lines while it runs
    (completion,) = [line for line in lines if line.startswith("accept  completion")]
    assert completion.split() == ["accept", "completion", "host", "OK", "yes"]  # no second "yes" as the bound
    assert all(line.split()[-1].endswith("…") or len(line) < width for line in lines if "SKIPPED" in line)
    below = " ".join(" ".join(lines[blank:]).split())
    assert "What did not pass: CRITICAL accept: " in below
    assert "61.44 GB/s is 30 % of the limit 204.8 GB/s (8 channels x 25.6 GB/s), at least 60 % is required" in below
    assert f"cause: {cause} next: {command}" in below
    assert f"no space left on /opt {'word ' * 59}word" in below


def test_a_run_with_little_to_spare_is_not_said_to_have_failed(run: Run) -> None:
    run.memory("node1", 0.7)
    text = "\n".join(summary.lines(run.report))
    assert "What has little to spare:\n  WARN accept: memory bandwidth (host): 143.4 GB/s is 70 %" in text
    assert "did not pass" not in text


def test_a_models_answer_does_not_steer_the_terminal(run: Run) -> None:
    run.check(
        "node1", "completion", value=True, scope="\x1b]0;x\x07", conditions={"question": "q", "answer": "\x1b[2Jgone\r"}
    )
    assert "\x1b" not in "\n".join(summary.lines(run.report))


def test_junit_of_an_empty_run() -> None:
    report = model.build("r", {})
    assert report.status == "UNKNOWN"
    assert JUnitXml.fromstring(junit.render(report).encode()).tests == 0


def test_a_figure_that_is_only_recorded_makes_no_host_good(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.check("node1", "copy", value=1e9, unit="B/s")
    run.check("node1", "memory", skipped="no DIMM table")
    report = model.load(tmp_path)
    assert summary.verdict(report) == "SKIPPED: 2 checks on 1 host: 1 SKIPPED, 1 recorded"
    assert report.headline == "Every check was skipped or only recorded: nothing here could be judged"
    run.memory("node1", 0.8)
    assert summary.verdict(model.load(tmp_path)) == "OK: 2 checks on 1 host: 1 OK, 1 recorded"
