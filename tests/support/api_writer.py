"""Writes objects over one connection until it is told to stop, and says what was acknowledged; ``SOCKET NAME``.

Whenever the connection ends, it connects again and looks: an object is as the last acknowledged write left it, or as
the one whose answer did not come. Prints a line for each acknowledged write, and ``LOST …`` for each that is gone.
"""

from __future__ import annotations

import http.client
import sys
import time

from support.api_client import ApiClient

_PATH = "/api/v1/namespaces/default/configmaps"
_OBJECTS = 5


class Writer:
    """One writer; objects have the number of the write that wrote them, or are not there."""

    def __init__(self, path: str, name: str) -> None:
        self._path, self._name = path, name
        self._client = ApiClient(path)
        self._acknowledged: dict[str, int | None] = {}
        self._revisions: dict[str, str] = {}
        self._tried: tuple[str, int | None] | None = None
        self._number = 0

    def run(self) -> None:
        """Write until standard input ends."""
        while True:
            try:
                self._look()
                while True:
                    self._write()
            except (OSError, http.client.HTTPException):
                self._client.close()
                time.sleep(0.05)  # the server is down: it needs the processor to start

    def _look(self) -> None:
        """Hold what is there against what is known."""
        for index in range(_OBJECTS):
            name = f"{self._name}-{index}"
            answer = self._client.ask("GET", f"{_PATH}/{name}")
            found = int(answer.value["data"]["number"]) if answer.status == 200 else None
            assert answer.status in (200, 404), answer.data
            known = [self._acknowledged.get(name)]
            if self._tried and self._tried[0] == name:
                known.append(self._tried[1])
            if found not in known:
                print(f"LOST {name}: {found} instead of {known}", flush=True)
            self._acknowledged[name] = found
            if found is not None:
                self._revisions[name] = answer.value["metadata"]["resourceVersion"]
        self._tried = None

    def _write(self) -> None:
        self._number += 1
        name = f"{self._name}-{self._number % _OBJECTS}"
        there = self._acknowledged[name] is not None
        wanted = None if there and self._number % 7 == 0 else self._number
        self._tried = name, wanted
        body = {"metadata": {"name": name}, "data": {"number": str(wanted)}}
        if wanted is None:
            answer = self._client.ask("DELETE", f"{_PATH}/{name}")
        elif there:
            body["metadata"]["resourceVersion"] = self._revisions[name]
            answer = self._client.ask("PUT", f"{_PATH}/{name}", body)
        else:
            answer = self._client.ask("POST", _PATH, body)
        if answer.status not in (200, 201):
            print(f"LOST {name}: {answer.data!r}", flush=True)
            sys.exit(1)
        self._acknowledged[name], self._tried = wanted, None
        if wanted is not None:
            self._revisions[name] = answer.value["metadata"]["resourceVersion"]
        print(f"{name} {wanted}", flush=True)


if __name__ == "__main__":
    Writer(sys.argv[1], sys.argv[2]).run()
