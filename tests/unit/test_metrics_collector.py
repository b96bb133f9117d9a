"""The metrics collector: what captured machines give, in the format that Prometheus reads, whatever a source does."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import metrics_collector, metrics_sources
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bmc_ipmi_run import IpmiTool
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.metrics_text import Metrics, write_whole

from tests.monitoring_support import program
from tests.tools.lspci_tree import machine

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
HGX = FIXTURES / "pci/gpud_hgx_8xH100_spr_lspci-vvv.txt.gz"
SHOWN = """Id=plumbline-serving.service
LoadState=loaded
ActiveState=active
NRestarts=2
ControlGroup=/system.slice/plumbline-serving.service
ActiveEnterTimestampMonotonic=5000000

Id=plumbline-gateway.service
LoadState=not-found
ActiveState=inactive
NRestarts=0
ControlGroup=
ActiveEnterTimestampMonotonic=0
"""


class Captured(IpmiTool):
    """An `ipmitool` that prints a captured answer."""

    def __init__(self, name: str) -> None:
        super().__init__(1)
        self.text = (FIXTURES / "ipmi" / name).read_text()

    def run(self, *arguments: str) -> tuple[str, str]:
        assert arguments == ("sensor",)
        return self.text, ""


def samples(metrics: Metrics) -> dict[str, float]:
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in metrics.render().splitlines()
        if line and line[0] != "#"
    }


def certificate(folder: Path, days: int) -> Path:
    path = folder / "tls.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(folder / "key.pem"),
        "-out",
        str(path),
    ]
    subprocess.run([*command, "-days", str(days), "-subj", "/CN=x"], check=True, capture_output=True, timeout=60)
    return path


def everything() -> str:
    """What the collector writes of a machine that has everything; test_monitoring_rules.py holds alerts and dashboard against it."""
    metrics = Metrics()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        machine(HGX).write(root / "pci")
        assert metrics_sources.pcie(metrics, str(root / "pci")) == ""
        assert metrics_sources.sensors(metrics, tool=Captured("gpu_node_one_cpu_sensor_excerpt.txt")) == ""
        assert metrics_sources.sensors(metrics, tool=Captured("openipmi_sim_faults_sensor.txt")) == ""
        assert metrics_sources.gpus(metrics, (FIXTURES / "nvidia/h200_580_nvidia-smi-q-x_v13.xml").read_text()) == ""
        assert metrics_sources.xids(metrics, (FIXTURES / "nvidia/gpud_dmesg_xid119.log").read_text()) == ""
        write(root / "cg/system.slice/plumbline-serving.service/memory.stat", "anon 4096\nfile 8192\nkernel 1\n")
        assert metrics_sources.units(metrics, SHOWN, str(root / "cg"), 100.0) == ""
        assert metrics_sources.certificate(metrics, certificate(root, 30)) == ""
    wish = {"sources": [], "bounds": {"queue_requests": 8}, "units": [], "certificates": [], "output": ""}
    own = metrics_collector.collect(wish).render()
    own += metrics_collector.collect({**wish, "sources": ["certificates"]}).render()
    return metrics.render() + own


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_text_is_what_prometheus_reads(tmp_path: Path) -> None:
    metrics = Metrics()
    metrics.remark("sensors: no BMC\nat all")
    metrics.add("a", "gauge", "What a is.", 1.5, name='quote " backslash \\ line\nend', kind="x")
    metrics.add("a", "gauge", "What a is.", float("nan"), name="left out")
    metrics.add("a", "gauge", "What a is.", None, name="left out")
    metrics.add("b_total", "counter", "What b is.", True)
    assert metrics.render() == (
        "# - sensors: no BMC at all\n# HELP a What a is.\n# TYPE a gauge\n"
        'a{kind="x",name="quote \\" backslash \\\\ line\\nend"} 1.5\n'
        "# HELP b_total What b is.\n# TYPE b_total counter\nb_total 1\n"
    )


def test_promtool_finds_nothing_wrong_with_what_is_collected() -> None:
    # Twice the collector's own families, as two runs: only one goes into a file.
    text = everything().split("# HELP plumbline_limit", 1)[0]
    done = subprocess.run(
        [program("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, check=False, timeout=60
    )
    said = [line for line in done.stderr.splitlines() + done.stdout.splitlines() if line]
    # Its advice on names is kept, but for the units that our names have on purpose.
    assert [line for line in said if not re.search(r"use base unit|abbreviated unit", line)] == []


def test_links_of_a_whole_machine_are_as_they_are(tmp_path: Path) -> None:
    machine(HGX).write(tmp_path)
    metrics = Metrics()
    assert metrics_sources.pcie(metrics, str(tmp_path)) == ""
    found = samples(metrics)
    gpus = [key for key in found if key.startswith("plumbline_pcie_link_speed_gts") and 'kind="gpu"' in key]
    assert len(gpus) == 8
    assert {found[key] for key in gpus} == {32.0}
    assert all('idles="yes"' in key for key in gpus)
    assert any('kind="nic"' in key and 'idles="no"' in key for key in found)
    for key, value in found.items():
        maximum = key.replace("link_speed", "link_maximum_speed").replace("link_width", "link_maximum_width")
        assert value <= found[maximum]


def test_a_machine_without_links_is_told(tmp_path: Path) -> None:
    metrics = Metrics()
    assert metrics_sources.pcie(metrics, str(tmp_path)) == "there is no PCI device in /sys/bus/pci/devices"
    assert samples(metrics) == {}


def test_sensors_have_their_thresholds_and_their_part() -> None:
    metrics = Metrics()
    assert metrics_sources.sensors(metrics, tool=Captured("gpu_node_one_cpu_sensor_excerpt.txt")) == ""
    found = samples(metrics)
    assert found['plumbline_sensor_celsius{part="dimm",sensor="CPU1_DIMMA1_Temp"}'] == 27
    label = 'level="upper_warning",part="dimm",sensor="CPU1_DIMMA1_Temp"'
    assert found[f"plumbline_sensor_threshold_celsius{{{label}}}"] == 81
    # What has no reading has no temperature of 0.
    assert not any("CPU1_DIMMD1" in key for key in found)
    assert found['plumbline_sensor_fan_rpm{sensor="GPU_FAN1"}'] == 16510


def test_two_sensors_of_one_name_stay_two() -> None:
    metrics = Metrics()
    metrics_sources.sensors(metrics, tool=Captured("openipmi_sim_faults_sensor.txt"))
    assert sorted(
        value
        for key, value in samples(metrics).items()
        if re.search(r'_celsius\{.*sensor="Temp', key) and "threshold" not in key
    ) == [44, 47]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("CPU1_DIMMA1_Temp", "dimm"),
        ("DIMM A1", "dimm"),
        ("Mem Zone 1", "dimm"),
        ("P1-VRM Temp", "vrm"),
        ("CPU0_VR_Temp", "vrm"),
        ("VR_MEM_ABCD Temp", "vrm"),
        ("VRMs CPU2", "vrm"),
        ("GPU3_MEM_Temp", "gpu"),
        ("CPU1 Temperature", "cpu"),
        ("Inlet Temp", "other"),
        ("Drive Bay", "other"),
        ("NVRAM", "other"),
    ],
)
def test_what_a_temperature_belongs_to(name: str, part: str) -> None:
    assert metrics_sources.part_of(name) == part


def test_a_gpu_gives_what_it_reads_now() -> None:
    metrics = Metrics()
    text = (FIXTURES / "nvidia/h200_580_nvidia-smi-q-x_v13.xml").read_text()
    metrics_sources.gpus(metrics, "WARNING: infoROM is corrupted\n" + text)
    found = {re.sub(r'gpu="[^"]*"', "", key): value for key, value in samples(metrics).items()}
    assert found["plumbline_gpu_celsius{}"] == 40
    assert found["plumbline_gpu_memory_celsius{}"] == 41
    assert found["plumbline_gpu_watts{}"] == 127.93
    assert found["plumbline_gpu_ecc_uncorrected_total{}"] == 0
    assert found['plumbline_gpu_throttled{,reason="hw_thermal_slowdown"}'] == 0


def test_a_gpu_of_an_older_driver_gives_the_same() -> None:
    metrics = Metrics()
    text = (FIXTURES / "nvidia/telegraf_nvidia-smi_a10g.xml").read_text()
    metrics_sources.gpus(
        metrics,
        text.replace(">Not Active</clocks_throttle_reason_hw_slowdown", ">Active</clocks_throttle_reason_hw_slowdown"),
    )
    found = {re.sub(r'gpu="[^"]*"', "", key): value for key, value in samples(metrics).items()}
    assert found["plumbline_gpu_watts{}"] == 25.58
    assert found['plumbline_gpu_throttled{,reason="hw_slowdown"}'] == 1
    assert found['plumbline_gpu_throttled{,reason="sw_thermal_slowdown"}'] == 0
    # N/A is no temperature.
    assert "plumbline_gpu_memory_celsius{}" not in found


def test_an_xid_is_counted_with_its_kind() -> None:
    metrics = Metrics()
    line = "Jan 01 00:00:00 n kernel: NVRM: Xid (PCI:0000:17:00): {}, pid=1, name=python\n"
    metrics_sources.xids(metrics, line.format(79) * 2 + line.format(13))
    assert samples(metrics) == {
        'plumbline_gpu_xid_total{gpu="0000:17:00.0",kind="application",xid="13"}': 1,
        'plumbline_gpu_xid_total{gpu="0000:17:00.0",kind="fault",xid="79"}': 2,
    }


@pytest.mark.parametrize("version", [1, 2])
def test_a_unit_gives_restarts_and_memory(tmp_path: Path, version: int) -> None:
    group = "system.slice/plumbline-serving.service/memory.stat"
    if version == 1:
        write(tmp_path / "memory" / group, "cache 1\nrss 1\ntotal_cache 8192\ntotal_rss 4096\n")
    else:
        write(tmp_path / group, "anon 4096\nfile 8192\n")
    metrics = Metrics()
    metrics_sources.units(metrics, SHOWN, str(tmp_path), 100.0)
    assert samples(metrics) == {
        'plumbline_unit_active{unit="plumbline-serving.service"}': 1,
        'plumbline_unit_restarts_total{unit="plumbline-serving.service"}': 2,
        'plumbline_unit_active_since_seconds{unit="plumbline-serving.service"}': 105,
        'plumbline_unit_memory_anon_bytes{unit="plumbline-serving.service"}': 4096,
        'plumbline_unit_memory_file_bytes{unit="plumbline-serving.service"}': 8192,
    }


def test_a_certificate_gives_its_end(tmp_path: Path) -> None:
    path = certificate(tmp_path, 30)
    metrics = Metrics()
    assert metrics_sources.certificate(metrics, path) == ""
    (end,) = samples(metrics).values()
    written = path.stat().st_mtime
    assert abs(end - (written + 30 * 86400)) < 86400
    path.write_text("nothing of the kind")
    assert "holds no certificate" in metrics_sources.certificate(Metrics(), path)
    path.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert "openssl cannot read the certificate" in metrics_sources.certificate(Metrics(), path)
    assert "No such file" in metrics_sources.certificate(Metrics(), tmp_path / "none.pem")


def wish(tmp_path: Path, **more: Any) -> Path:
    path = tmp_path / "collector.json"
    whole = {"output": str(tmp_path / "out.prom"), "units": [], "certificates": [], "sources": [], "bounds": {}}
    path.write_text(json.dumps({**whole, **more}))
    return path


def test_a_source_that_breaks_is_told_and_spares_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_sources, "pcie", lambda _metrics: 1 / 0)
    path = wish(tmp_path, sources=["pcie", "certificates"], bounds={"disk_free_ratio": 0.05})
    assert metrics_collector.main([str(path)]) == 0
    text = (tmp_path / "out.prom").read_text()
    assert 'plumbline_collector_source_up{source="pcie"} 0' in text
    assert "# - pcie: ZeroDivisionError: division by zero" in text
    assert 'plumbline_collector_source_up{source="certificates"} 1' in text
    assert 'plumbline_limit{limit="disk_free_ratio"} 0.05' in text
    assert (tmp_path / "out.prom").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "expected a JSON object, found text that is none"),
        ("[]", "expected a JSON object, found list"),
        ('{"output": 5}', "expected output to be of the type str, found 5"),
        ('{"output": "x", "units": [], "certificates": [], "sources": ["gpu"], "bounds": {}}', "found 'gpu'"),
        (
            '{"output": "x", "units": [], "certificates": [], "sources": [], "bounds": {"a": "9"}}',
            "the bound a to be a number",
        ),
    ],
)
def test_a_wrong_configuration_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    path = tmp_path / "collector.json"
    path.write_text(content)
    assert metrics_collector.main([str(path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wish(tmp_path, output=str(tmp_path / "none" / "out.prom"))
    assert metrics_collector.main([str(path)]) == 1
    assert capsys.readouterr().err.startswith(
        f"plumbline-metrics: {tmp_path}/none/out.prom cannot be written: No such file"
    )


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    path.write_text("old")
    opened = path.open()
    write_whole(path, "new\n")
    assert opened.read() == "old"
    assert path.read_text() == "new\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.prom"]
