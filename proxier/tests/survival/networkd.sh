# Runs systemd-networkd with the .network files in directory $0, and the D-Bus system bus for networkctl.
# systemd and udev do not run.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount --make-rprivate /
mount -t tmpfs -o mode=0755 tmpfs /run
mkdir -p /run/systemd /run/dbus
# networkd waits for udev, unless /sys is read-only, as in a container.
mount --bind /sys /sys
mount -o remount,bind,ro /sys
mount --bind "$0" /etc/systemd/network
dbus-daemon --system --nopidfile --fork
exec /lib/systemd/systemd-networkd
