"""Callers that write with an Idempotency-Key and ask again until they are answered, as a careful client does. IO: HTTP to loopback."""

import http.client
import json
import threading
import time
from dataclasses import dataclass, field

AGAIN = (409, 502, 503)
"""In progress elsewhere, or one of the two is away: the same key is sent again."""
PAUSE_S = 0.02


@dataclass(slots=True)
class Writer:
    """Writes the numbers `first`, `first + 1`, … one after the other, each under its own Idempotency-Key.

    `acknowledged`: numbers that were answered 200; `run_ids` of all complete answers; `wrong`: answers that no caller should get.
    `unheard`: calls that got no answer; `open_`: the number that was asked for and not yet answered.
    """

    port: int
    key: str
    first: int
    acknowledged: list[int] = field(default_factory=list)
    run_ids: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unheard: int = 0
    open_: int | None = None
    repeats: int = 0

    def run(self, stopping: threading.Event, give_up: threading.Event) -> None:
        """Until `stopping`, and then only until the last number is answered; `give_up` ends it whatever is open."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        number = self.first
        while not give_up.is_set() and (self.open_ is not None or not stopping.is_set()):
            self.repeats += self.open_ is not None
            self.open_ = number
            status = self._ask(connection, number)
            if status == 200:
                self.acknowledged.append(number)
                self.open_, number = None, number + 1
            elif status is not None and status not in AGAIN:
                self.wrong.append(f"{status} for {number}")
                self.open_, number = None, number + 1
            else:
                time.sleep(PAUSE_S)
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection, number: int) -> int | None:
        headers = {"X-API-Key": self.key, "Content-Type": "application/json", "Idempotency-Key": f"note-{number}"}
        try:
            connection.request("POST", "/q/note", json.dumps({"number": number}), headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            self.unheard += 1
            return None
        if (run_id := answer.getheader("X-Run-Id")) is not None:
            self.run_ids.append(run_id)
        if answer.status == 200 and json.loads(body) != {"number": number}:
            self.wrong.append(f"another body for {number}")
        return answer.status


def stored_faults(stored: dict[int, int], writers: list[Writer]) -> list[str]:
    """What is wrong with how often each number is in the table: acknowledged ones once; the one that was never answered at most once."""
    found = [f"{number} was written {times} times" for number, times in stored.items() if times != 1]
    for writer in writers:
        found += [f"{number} was acknowledged and is not there" for number in writer.acknowledged if number not in stored]
    allowed = {number for writer in writers for number in (*writer.acknowledged, writer.open_)}
    found += [f"{number} is there and was never asked for" for number in stored if number not in allowed]
    return found
