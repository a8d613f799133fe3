#!/bin/busybox sh
# First process of the nested machine: finds its disks, and hands over to systemd on them.
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev

fail() {
    /bin/busybox echo "initrd: $1"
    /bin/busybox poweroff -f
}

while read -r module; do
    /bin/busybox insmod "/modules/$module" || fail "$module does not load"
done </modules/order

read -r line </proc/cmdline
for word in $line; do
    case "$word" in nested.checkout=*) checkout=${word#*=} ;; esac
done

for disk in /dev/vda /dev/vdb; do
    until [ -b "$disk" ]; do /bin/busybox usleep 10000; done
done
/bin/busybox mount -t ext4 /dev/vda /root || fail "no root file system"
/bin/busybox mkdir -p "/root$checkout"
/bin/busybox mount -t ext4 /dev/vdb "/root$checkout" || fail "no checkout"
/bin/busybox ln -sf "$checkout/.venv/bin/podkeep" /root/usr/local/bin/podkeep
/bin/busybox umount /proc
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /sbin/init
