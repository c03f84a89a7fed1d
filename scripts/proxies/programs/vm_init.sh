#!/bin/bash
# The first process of the virtual machine: mounts what a system has, runs the job, and turns the machine off.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb PYTHONPATH=/shared PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
for folder in /dev/shm /run /tmp; do mount -t tmpfs tmpfs "$folder"; done
ip link set lo up
hostname host-a
stty -F /dev/ttyS1 raw
/venv/bin/python -P "/shared/$(cat /shared/job)" > /dev/ttyS0 2>&1
sync
echo o > /proc/sysrq-trigger
sleep 10
