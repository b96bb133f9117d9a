# Runs as root inside the new image. What is set here is what a freshly installed server has, no more.
chmod 0755 /usr/local/lib/plumbline-lab/keys /etc/initramfs-tools/hooks/plumbline-lab
chmod 0440 /etc/sudoers.d/ops
useradd --uid 1000 --create-home --shell /bin/bash --comment 'Operations' ops
passwd --lock root >/dev/null
echo lab-vm1 > /etc/hostname
echo '127.0.0.1 localhost lab-vm1' > /etc/hosts
rm -f /etc/resolv.conf
echo 'nameserver 10.0.2.3' > /etc/resolv.conf

systemctl enable ssh.service systemd-networkd.service plumbline-lab-keys.service
systemctl mask systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer getty@tty1.service serial-getty@ttyS0.service \
    e2scrub_all.timer e2scrub_reap.service fstrim.timer man-db.timer dpkg-db-backup.timer

update-initramfs -u -k all

# GRUB as grub-install lays it, but for the two sectors that stand outside of the file system: the controller writes them.
mkdir -p /boot/grub/i386-pc
cp /usr/lib/grub/i386-pc/*.mod /usr/lib/grub/i386-pc/*.lst /boot/grub/i386-pc/
grub-mkimage -O i386-pc -p '(hd0,msdos1)/boot/grub' -o /boot/grub/i386-pc/core.img biosdisk part_msdos ext2
cp /usr/lib/grub/i386-pc/boot.img /boot/grub/i386-pc/boot.img
# update-grub asks the disk that it runs on; in the machine itself it does, and replaces this.
version=$(ls /lib/modules | tail -n 1)
. /etc/default/grub
cat > /boot/grub/grub.cfg <<EOF
set timeout=0
menuentry 'Debian' {
    set root='(hd0,msdos1)'
    linux /boot/vmlinuz-$version root=/dev/vda1 ro $GRUB_CMDLINE_LINUX
    initrd /boot/initrd.img-$version
}
EOF

rm -f /etc/ssh/ssh_host_* /var/lib/dbus/machine-id
: > /etc/machine-id
