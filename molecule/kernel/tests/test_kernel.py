"""What the kernel stage left on the node, seen from outside Ansible."""

import json

testinfra_hosts = ["podman://plumbline-molecule-kernel"]


def read(host, path):
    return host.run("cat %s", path).stdout.strip()


def test_the_hosts_values_are_as_they_were(host):
    """The container is privileged: a write would have reached the host."""
    assert read(host, "/proc/sys/vm/swappiness") == read(host, "/run/before/swappiness")
    assert read(host, "/proc/sys/kernel/numa_balancing") == read(host, "/run/before/numa_balancing")
    assert read(host, "/sys/kernel/mm/transparent_hugepage/enabled") == read(host, "/run/before/thp")


def test_only_what_is_the_containers_own_is_kept(host):
    lines = read(host, "/etc/sysctl.d/95-plumbline.conf").splitlines()[1:]
    assert lines == ["net.core.somaxconn = 4096", "net.ipv4.tcp_slow_start_after_idle = 0"]
    for path in (
        "/etc/tmpfiles.d/95-plumbline.conf",
        "/etc/security/limits.d/95-plumbline.conf",
        "/etc/default/grub.d/95-plumbline.cfg",
    ):
        assert not host.file(path).exists, path


def test_the_values_are_applied_now_and_at_every_start(host):
    assert read(host, "/proc/sys/net/ipv4/tcp_slow_start_after_idle") == "0"
    assert host.service("plumbline-kernel-settings").is_enabled
    assert host.service("plumbline-kernel-settings").is_running


def test_the_first_values_are_on_record(host):
    state = json.loads(read(host, "/var/lib/plumbline/kernel_settings.json"))
    before = state["live"]["net.ipv4.tcp_slow_start_after_idle"]["before"]
    assert before == {"/proc/sys/net/ipv4/tcp_slow_start_after_idle": "1"}
    assert "vm.swappiness" not in state["live"]


def test_the_made_up_machine_was_given_back(host):
    assert read(host, "/srv/machine/proc/sys/vm/swappiness") == "60"
    assert read(host, "/srv/machine/sys/kernel/mm/transparent_hugepage/enabled") == "never"
    assert read(host, "/srv/machine/sys/devices/system/cpu/cpufreq/policy0/scaling_governor") == "powersave"
    assert host.run("find /srv/machine/etc -type f").stdout.split() == ["/srv/machine/etc/default/grub"]


def test_apt_itself_holds_the_packages_back(host):
    shown = host.run("apt-config dump Unattended-Upgrade::Package-Blacklist").stdout
    for name in ("linux-image", "linux-headers", "nvidia-", "libnvidia-", "cuda-drivers"):
        assert f'"^{name}"' in shown, shown


def test_the_slice_is_there_at_every_start(host):
    # The recommendation, which the last run of the role brought back.
    assert read(host, "/etc/systemd/system/plumbline.slice").splitlines()[-4] == "MemoryMax=95%"
    assert host.file("/etc/systemd/system/multi-user.target.wants/plumbline.slice").is_symlink
    assert host.run("systemctl is-active plumbline.slice").stdout.strip() == "active"
    assert host.run("systemctl is-active in-the-slice").stdout.strip() == "active"
