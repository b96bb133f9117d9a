# Runs as root inside the new image. What is set here is what a freshly installed server has, no more.
chmod 0755 /usr/local/lib/plumbline-lab/guard
chmod 0440 /etc/sudoers.d/ops
useradd --uid 1000 --create-home --shell /bin/bash --comment 'Operations' ops
passwd --lock root >/dev/null

# udev would rename network interfaces and load modules of the host; systemd-sysctl would set the host's sysctls.
systemctl mask systemd-udevd.service systemd-udev-trigger.service systemd-sysctl.service systemd-modules-load.service \
    console-getty.service getty.target dev-hugepages.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
    proc-sys-fs-binfmt_misc.automount apt-daily.timer apt-daily-upgrade.timer
systemctl enable ssh.service plumbline-lab-guard.service

# One image, many nodes: each gets its own identity and host key.
rm -f /etc/ssh/ssh_host_* /var/lib/dbus/machine-id
: > /etc/machine-id
