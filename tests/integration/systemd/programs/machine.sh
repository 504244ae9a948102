#!/bin/sh
# Becomes a small machine: this machine's own systemd as process 1, on a copy of its root that vanishes with it.
#   machine.sh DIR NEEDED…      DIR/share is /share inside; the NEEDED directories are there, too, to be read
# To be started in fresh pid, mount, cgroup, ipc, uts and network namespaces (see conftest.py). With `--only-try`
# in place of NEEDED it ends as soon as it knows that this can be done.
set -eu
dir=$1
root=$dir/root
shift

# Writes go to memory. An overlay shows the root file system alone, so what is mounted elsewhere has to be bound.
mkdir -p "$dir/memory" "$root" "$dir/share"
mount -t tmpfs memory "$dir/memory"
mkdir "$dir/memory/changed" "$dir/memory/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/memory/changed,workdir=$dir/memory/work" "$root"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
[ "${1-}" != --only-try ] || exit 0

mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
# The kernel is not ours alone: nothing in here may set its variables.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"

mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"

mkdir -p "$root/share"
mount --bind "$dir/share" "$root/share"
for needed; do
    mkdir -p "$root$needed"
    # Whoever is nobody outside may be somebody inside: the way there is open.
    above=$needed
    while above=$(dirname "$above") && [ "$above" != / ]; do
        chmod a+x "$root$above" 2>/dev/null || :
    done
    mount --bind "$needed" "$root$needed"
    mount -o remount,bind,ro "$root$needed"
done

# Nothing is started but the bus and the journal; what would reach through to the kernel or the disks is masked.
units=$root/run/systemd/system
mkdir -p "$units"
cat >"$units/machine.target" <<END
[Unit]
DefaultDependencies=no
AllowIsolate=yes
Wants=systemd-journald.service systemd-journald.socket dbus.service dbus.socket
END
for unit in systemd-sysctl.service systemd-modules-load.service systemd-binfmt.service systemd-udevd.service \
    systemd-udev-trigger.service systemd-remount-fs.service systemd-random-seed.service systemd-tmpfiles-setup-dev.service \
    systemd-update-utmp.service systemd-journal-flush.service systemd-firstboot.service \
    dev-hugepages.mount dev-mqueue.mount sys-fs-fuse-connections.mount sys-kernel-config.mount \
    sys-kernel-debug.mount sys-kernel-tracing.mount; do
    ln -s /dev/null "$units/$unit"
done
hostname machine
cd "$root"
mkdir -p .outside
pivot_root . .outside
umount -l .outside
systemd=/usr/lib/systemd/systemd
[ -x "$systemd" ] || systemd=/lib/systemd/systemd
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 container=test \
    "$systemd" --system --unit=machine.target --log-target=journal --show-status=no
