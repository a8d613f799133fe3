# Boots a systemd of its own in new mount, UTS, IPC, PID and cgroup namespaces.
#
# boot_systemd.sh BASE SYSTEMD: BASE has the machine's units and its console.
set -e
base=$1 systemd=$2
umount -R -l /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/systemd/system
cp "$base"/units/* /run/systemd/system/
# What PID 1 sets up for a machine must not reach this one.
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount --bind "$base" "$base"
mount --bind "$base/console" /dev/console
mount -o remount,bind,ro /
export container=podkeep-test
exec "$systemd" --system --unit=trial.target --log-target=console --show-status=0
