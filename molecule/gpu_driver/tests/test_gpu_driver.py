"""What the driver stage left on the node, seen from outside Ansible."""

testinfra_hosts = ["podman://plumbline-molecule-gpu-driver"]


def test_the_wanted_branch_is_installed_and_held(host):
    versions = host.run(
        "dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n' nvidia-kernel-dkms nvidia-smi libcuda1"
    )
    assert versions.stdout.split("\n")[:3] == [
        "libcuda1 580.159.04-1 hi ",
        "nvidia-kernel-dkms 580.159.04-1 hi ",
        "nvidia-smi 580.159.04-1 hi ",
    ]
    # Of another version than the branch, and still the only one that there is.
    assert host.package("nvidia-persistenced").version == "535.171.04-1~deb12u1"


def test_nouveau_is_off_and_the_options_are_gone_again(host):
    lines = host.file("/etc/modprobe.d/95-plumbline-nvidia.conf").content_string.splitlines()
    assert lines[1:] == ["blacklist nouveau", "options nouveau modeset=0"]
    assert host.file("/etc/modprobe.d/95-plumbline-nvidia.conf").mode == 0o644


def test_the_initramfs_was_made_once_for_each_change(host):
    calls = host.file("/srv/initramfs.log").content_string.splitlines()
    assert calls == ["-u -k 6.1.0-27-amd64"] * 2


def test_the_source_is_the_one_of_the_inventory(host):
    assert "file:/srv/repository" in host.file("/etc/apt/sources.list.d/plumbline-nvidia.sources").content_string
