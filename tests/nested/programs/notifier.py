#!/usr/bin/python3 -SE
"""A service of type notify. It notes its command line and its signals in the file $NOTES, an object in JSON a line."""

import json
import os
import signal
import socket
import sys


def note(**what: object) -> None:
    with open(os.environ["NOTES"], "a") as notes:  # noqa: PTH123 - it starts quickly
        print(json.dumps(what), file=notes)


def noted(number: int, _frame: object) -> None:
    note(signal=signal.Signals(number).name)
    if number == signal.SIGTERM:
        raise SystemExit


for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, noted)
note(argv=sys.argv[1:], cwd=os.getcwd(), pid=os.getpid())
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
    ready.connect(os.environ["NOTIFY_SOCKET"])
    ready.send(b"READY=1")
while True:
    signal.pause()
