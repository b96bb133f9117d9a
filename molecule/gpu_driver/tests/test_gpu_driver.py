"""What the driver stage left on the node, seen from outside Ansible."""

testinfra_hosts = ["podman://plumbline-molecule-gpu-driver"]


def test_the_wanted_branch_is_installed_and_held(host):
    versions = host.run(
        "dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n' "
        "nvidia-driver-cuda nvidia-fabricmanager-580 nvidia-kernel-open-dkms"
    )
    # Not the newest of the branch: the newest that the fabric manager has as well.
    assert versions.stdout.split("\n")[:3] == [
        "nvidia-driver-cuda 580.159.04-1 hi ",
        "nvidia-fabricmanager-580 580.159.04-1 hi ",
        "nvidia-kernel-open-dkms 580.159.04-1 hi ",
    ]
    # Of another version than the branch's oldest, and still the only one that there is.
    assert host.package("nvidia-persistenced").version == "580.200.01-1"


def test_the_services_start_with_the_machine(host):
    for name in ("nvidia-persistenced", "nvidia-fabricmanager"):
        assert host.service(name).is_enabled


def test_the_unit_of_the_modes_is_gone_again(host):
    assert not host.file("/etc/systemd/system/plumbline-gpu-modes.service").exists
    assert not host.file("/etc/systemd/system/multi-user.target.wants/plumbline-gpu-modes.service").is_symlink


def test_nouveau_is_off_and_the_options_are_gone_again(host):
    lines = host.file("/etc/modprobe.d/95-plumbline-nvidia.conf").content_string.splitlines()
    assert lines[1:] == ["blacklist nouveau", "options nouveau modeset=0"]
    assert host.file("/etc/modprobe.d/95-plumbline-nvidia.conf").mode == 0o644


def test_the_initramfs_was_made_once_for_each_change(host):
    calls = host.file("/srv/initramfs.log").content_string.splitlines()
    assert calls == ["-u -k 6.1.0-27-amd64"] * 2


def test_the_directory_is_a_source_and_was_not_written_to(host):
    source = host.file("/etc/apt/sources.list.d/plumbline-nvidia.sources").content_string
    assert "URIs: file:/var/lib/plumbline/gpu_driver" in source
    assert not host.file("/srv/packages/Packages").exists
    assert host.file("/var/lib/plumbline/gpu_driver/files").linked_to == "/srv/packages"
