"""Events: JSON lines from a white list, which never hold a request up."""

import errno
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar import events as module
from sidecar.events import EVENTS, FIELDS, Events
from tests.kit.waiting import wait_for

FIXED = ["schemaVersion", "component", "level", "event", "replicaId", "timestamp"]
PIPE_LINES = 2000
"""Lines enough to fill a pipe several times over."""


class Pipe:
    """A pipe whose reading end is read when asked."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self._data = b""

    def read(self) -> bytes:
        """Return everything that is there now."""
        try:
            while data := os.read(self.reader, 1 << 16):
                self._data += data
        except BlockingIOError:
            pass
        return self._data

    def lines(self) -> list[dict[str, Any]]:
        """Return the whole lines so far."""
        whole = self.read().rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def close(self) -> None:
        """Close both ends."""
        for end in (self.reader, self.writer):
            os.close(end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe."""
    made = Pipe()
    yield made
    made.close()


def test_a_line_has_the_fixed_fields_and_its_own(pipe: Pipe) -> None:
    """Each event is one JSON object on one line: the fixed fields in order, then its own."""
    events = Events("replica-7", descriptor=pipe.writer)
    events.emit("request_completed", level="warning", requestId="a", code="not_found", status=404)
    events.close()
    (line,) = pipe.lines()
    assert list(line) == [*FIXED, "requestId", "code", "status"]
    assert (line["schemaVersion"], line["component"], line["level"]) == (1, "secret-sidecar", "warning")
    assert (line["event"], line["replicaId"]) == ("request_completed", "replica-7")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["timestamp"])
    assert pipe.read().count(b"\n") == 1


def test_every_event_and_field_of_the_white_list_passes_and_nothing_else(pipe: Pipe) -> None:
    """An event or a field outside the white list is refused before anything is written."""
    events = Events("", descriptor=pipe.writer)
    for event in sorted(EVENTS):
        every: dict[str, Any] = dict.fromkeys(FIELDS, 1)
        events.emit(event, **every)
    for event, field in (("secret_leaked", "code"), ("request_completed", "value"), ("request_completed", "message")):
        one: dict[str, Any] = {field: 1}
        with pytest.raises(ValueError, match="white list"):
            events.emit(event, **one)
    events.close()
    assert [line["event"] for line in pipe.lines()] == sorted(EVENTS)


def test_the_white_list_has_no_room_for_text_from_outside() -> None:
    """No field is there that a message, stack, path, ref, name, token or value could travel in."""
    wanting = (
        "message",
        "stack",
        "trace",
        "path",
        "file",
        "ref",
        "name",
        "token",
        "value",
        "worker",
        "session",
        "target",
    )
    assert [field for field in FIELDS if field.lower() in wanting or field.lower().endswith("name")] == []


def test_the_white_list_holds_nothing_that_nobody_says() -> None:
    """Each event and each field of the white list is written somewhere in the product."""
    product = Path(module.__file__).parent
    text = "\n".join(path.read_text("utf-8") for path in product.rglob("*.py"))
    assert [event for event in EVENTS if text.count(f'"{event}"') < 2] == []
    assert [field for field in FIELDS if not re.search(rf'\b{field}=|"{field}":', text)] == []


def test_many_events_come_in_their_order(pipe: Pipe) -> None:
    """Nothing is lost and nothing overtakes as long as somebody reads."""
    events = Events("", descriptor=pipe.writer)
    for number in range(PIPE_LINES):
        events.emit("request_completed", status=number)
        if number % 100 == 0:
            pipe.read()
    wait_for(lambda: len(pipe.lines()) == PIPE_LINES)
    events.close()
    assert [line["status"] for line in pipe.lines()] == list(range(PIPE_LINES))
    assert events.dropped == 0


def test_a_stalled_reader_stalls_nobody(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a full pipe, emitting goes on at once; what has no room is counted, and told when lines flow again."""
    monkeypatch.setattr(module, "_QUEUE_LINES", 100)
    events = Events("", descriptor=pipe.writer)
    # The pipe is filled first: the writer thread then holds one batch, the queue the next lines.
    filler = b"\n" * 65536
    os.set_blocking(pipe.writer, False)
    written = os.write(pipe.writer, filler)
    os.set_blocking(pipe.writer, True)
    began = time.monotonic()
    for number in range(PIPE_LINES):
        events.emit("request_completed", status=number)
    assert time.monotonic() - began < 2
    assert events.dropped >= PIPE_LINES - 2 * 100 - 100
    wait_for(lambda: len(pipe.read()) > written)
    sent = PIPE_LINES - events.dropped

    def numbers() -> list[int]:
        return [line["status"] for line in map(json.loads, pipe.read().split()) if "status" in line]

    wait_for(lambda: pipe.read().endswith(b"\n") and len(numbers()) == sent)
    events.emit("process_stopping")
    events.close()
    told = [json.loads(line) for line in pipe.read().split() if b"events_dropped" in line]
    assert told[-1]["dropped"] == events.dropped
    assert told[-1]["level"] == "error"


def test_closing_gives_up_on_a_stalled_reader(pipe: Pipe) -> None:
    """A reader that never reads again delays the end by the time given, not for ever."""
    events = Events("", descriptor=pipe.writer)
    os.set_blocking(pipe.writer, False)
    os.write(pipe.writer, b"\n" * 65536)
    os.set_blocking(pipe.writer, True)
    events.emit("process_stopping")
    began = time.monotonic()
    events.close(0.2)
    assert 0.2 <= time.monotonic() - began < 5
    pipe.read()


def test_closing_writes_what_is_queued(pipe: Pipe) -> None:
    """The last events before the end are written before `close` returns."""
    events = Events("", descriptor=pipe.writer)
    for number in range(50):
        events.emit("request_completed", status=number)
    events.close()
    assert len(pipe.lines()) == 50


def test_closing_without_an_event_starts_nothing(pipe: Pipe) -> None:
    """Events that were never used have no thread and write nothing."""
    before = threading.active_count()
    Events("", descriptor=pipe.writer).close()
    assert threading.active_count() == before
    assert pipe.read() == b""


def test_lines_for_nobody_are_counted() -> None:
    """When nobody holds the other end, each line is counted as dropped, and nothing is raised."""
    reader, writer = os.pipe()
    os.close(reader)
    events = Events("", descriptor=writer)
    for _ in range(3):
        events.emit("process_stopping")
    events.close()
    os.close(writer)
    assert events.dropped == 3


def test_the_line_that_tells_of_lost_ones_is_none_of_them() -> None:
    """The number of dropped events counts what was emitted, whatever becomes of the line that tells it."""
    reader, writer = os.pipe()
    os.close(reader)
    events = Events("", descriptor=writer)
    for number in range(1, 4):
        events.emit("process_stopping")
        wait_for(lambda number=number: events.dropped == number)  # type: ignore[misc]
    events.close()
    os.close(writer)
    assert events.dropped == 3


def test_a_non_blocking_output_is_waited_for(pipe: Pipe) -> None:
    """Output that another program has made non-blocking loses nothing while its reader is slow."""
    os.set_blocking(pipe.writer, False)
    events = Events("", descriptor=pipe.writer)
    for number in range(PIPE_LINES):
        events.emit("request_completed", status=number)
    wait_for(lambda: len(pipe.lines()) == PIPE_LINES)
    events.close()
    assert [line["status"] for line in pipe.lines()] == list(range(PIPE_LINES))
    assert events.dropped == 0


def failing(times: int, first: int) -> Callable[[int, Any], int]:
    """An `os.write` that takes `first` bytes and then fails so many times, as a full disk does."""
    real, left = os.write, [times, first]

    def write(descriptor: int, data: Any) -> int:
        if left[1]:
            part, left[1] = left[1], 0
            return real(descriptor, data[:part])
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "full")
        return real(descriptor, data)

    return write


def test_after_a_torn_line_the_next_one_is_whole(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that failed in the middle of a line costs that line alone, is counted, and is told."""
    events = Events("", descriptor=pipe.writer)
    monkeypatch.setattr(os, "write", failing(times=2, first=10))
    events.emit("process_starting")
    wait_for(lambda: events.dropped == 1)
    events.emit("process_ready")
    wait_for(lambda: events.dropped > 1)
    dropped = events.dropped
    events.emit("process_stopping")
    events.close()
    torn, *whole = pipe.read().split(b"\n")
    assert len(torn) == 10
    lines = [json.loads(line) for line in whole if line]
    assert [line["event"] for line in lines] == ["process_stopping", "events_dropped"]
    assert lines[-1]["dropped"] == dropped
