"""The one wire between hosts: a process that takes each packet of a host, and hands it on later, or never.

    python wire.py SETTINGS     as JSON: hosts, address -> the process that holds its namespaces; delay, loss, rate

A line on the standard input says who hears of whom: address -> number of its group, or nothing for all. The answer is a
line that says how many packets were passed and lost. The process ends with its standard input.
"""

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time

settings = json.loads(sys.argv[1])
SET_NAME, PLAIN_PACKETS, NETWORK = 0x400454CA, 0x1001, 0x40000000  # TUNSETIFF; IFF_TUN | IFF_NO_PI; CLONE_NEWNET
QUEUE = 0.5  # seconds that a packet waits for the rate; with more it is lost, as in a full router
draw = random.Random(1)
ends, addresses, free_at = {}, {}, {}
for address, process in settings["hosts"].items():
    with open(f"/proc/{process}/ns/net") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), NETWORK):
            sys.exit(f"setns: {os.strerror(ctypes.get_errno())}")
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, SET_NAME, struct.pack("16sH22x", b"eth0", PLAIN_PACKETS))
    for words in (f"address add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
        subprocess.run(["ip", *words.split()], check=True)
    raw = bytes(map(int, address.split(".")))
    ends[raw], addresses[end] = end, raw
groups, count, waiting = {}, {"passed": 0, "lost": 0}, []
names = {raw: ".".join(map(str, raw)) for raw in ends}


def depart(key, size, now):
    """When the last byte has left a queue of one direction of a link; None: the queue is full."""
    begin = max(now, free_at.get(key, 0.0))
    if begin - now > QUEUE:
        return None
    free_at[key] = begin + size / settings["rate"]
    return free_at[key]


def accept(packet, source, now):
    """Put a packet in the line of those that arrive later; say whether it is not lost."""
    target = packet[16:20]
    if packet[0] >> 4 != 4 or target not in ends:
        return True  # of no protocol that is used here
    if groups and groups.get(names[source], source) != groups.get(names[target], target):
        return False
    if draw.random() < settings["loss"] or (left := depart((source, "up"), len(packet), now)) is None:
        return False
    if (there := depart((target, "down"), len(packet), left)) is None:
        return False
    count["passed"] += 1
    heapq.heappush(waiting, (there + 2 * settings["delay"], count["passed"], ends[target], packet))
    return True


poll = select.epoll()
for end in (0, *addresses):
    poll.register(end, select.EPOLLIN)
lines = b""
while True:
    now = time.monotonic()
    for end, _ in poll.poll(max(0.0, waiting[0][0] - now) if waiting else -1):
        if end == 0:
            if not (found := os.read(0, 65536)):
                sys.exit(0)
            lines += found
            while b"\n" in lines:
                line, _, lines = lines.partition(b"\n")
                groups = json.loads(line)
                print(json.dumps(count), flush=True)
            continue
        try:
            packet = os.read(end, 65536)
        except BlockingIOError:
            continue
        count["lost"] += not accept(packet, addresses[end], time.monotonic())
    now = time.monotonic()
    while waiting and waiting[0][0] <= now:
        *_, end, packet = heapq.heappop(waiting)
        try:
            os.write(end, packet)
        except OSError:  # its queue is full, or the host has ended
            count["lost"] += 1
