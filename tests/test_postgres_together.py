"""sidecar/stores/postgres_together.py: calls that come together go together, and nobody waits for a stranger's fate."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.stores import postgres_together
from sidecar.stores.postgres_pool import Pool
from sidecar.stores.postgres_session import Unusable
from sidecar.stores.postgres_sql import SEPARATOR
from sidecar.stores.postgres_together import LANES, Together
from tests.kit.postgres_bed import until

STATEMENT = "SELECT"


@dataclass(slots=True, eq=False)
class Sent:
    """A statement under way: what it was given, and the answer that the test gives."""

    values: list[str]
    until: float
    answer: asyncio.Future[Sequence[Sequence[object]]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def echo(self) -> None:
        """Answer with a row for each call, which says what the call was."""
        self.answer.set_result([(value,) for value in self.values])


class Server:
    """A pool and its sessions in one: it notes what is sent and who gives a session back."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.taken = 0
        self.refuses = False

    async def take(self, _until: float) -> "Server":
        """Give a session."""
        if self.refuses:
            raise Unusable
        self.taken += 1
        return self

    def give_back(self, _session: "Server") -> None:
        """Take it back."""
        self.taken -= 1

    async def fetch(self, statement: str, until: float, text: str) -> Sequence[Sequence[object]]:
        """Send a statement."""
        assert statement == STATEMENT
        sent = Sent(text.split(SEPARATOR), until)
        self.sent.append(sent)
        return await sent.answer


@pytest.fixture
def fake() -> Server:
    """A server that answers when the test says so."""
    return Server()


def together(server: Server, *, returns: bool = True) -> Together:
    """Calls to that server."""
    return Together(cast("Pool", server), STATEMENT, returns=returns)


def ask(calls: Together, *values: str | None, until: float = 1e9) -> "asyncio.Task[Any]":
    """A call in a task of its own."""
    return asyncio.create_task(calls.call(until, *values))


async def turns(count: int = 5) -> None:
    """Let everything run that can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_lone_call_goes_at_once(fake: Server) -> None:
    """With nobody to go with a call is sent before its first suspension, and alone."""
    calls = together(fake)
    coroutine = calls.call(7.0, "a")
    waits = coroutine.send(None)
    assert [(sent.values, sent.until) for sent in fake.sent] == [(["a"], 7.0)]
    assert waits is fake.sent[0].answer
    coroutine.close()
    assert fake.taken == 0


async def test_those_who_wait_go_together(fake: Server) -> None:
    """What comes while a statement is under way goes in one, in the order it came, and each gets its own row."""
    calls = together(fake)
    asked = [ask(calls, name) for name in "abcd"]
    await turns()
    assert [sent.values for sent in fake.sent] == [["a"]]
    fake.sent[0].echo()
    await turns()
    assert [sent.values for sent in fake.sent[1:]] == [["b", "c", "d"]]
    late = ask(calls, "e")
    await turns()
    assert len(fake.sent) == 2
    fake.sent[1].echo()
    await turns()
    fake.sent[2].echo()
    assert await asyncio.gather(*asked, late) == [("a",), ("b",), ("c",), ("d",), ("e",)]
    assert fake.taken == 0


async def test_calls_of_several_values(fake: Server) -> None:
    """The values of one call stand together, and the calls one after the other."""
    calls = together(fake, returns=False)
    asked = [ask(calls, number, "x", None) for number in "012"]
    await turns()
    fake.sent[0].answer.set_result([])
    await turns()
    fake.sent[1].answer.set_result([])
    assert [sent.values for sent in fake.sent] == [["0", "x", ""], ["1", "x", "", "2", "x", ""]]
    assert await asyncio.gather(*asked) == [(), (), ()]


async def test_a_value_is_one_value(fake: Server) -> None:
    """A value that the server would read as two is not sent."""
    with pytest.raises(ValueError, match="separator"):
        together(fake).call(1e9, "a", f"b{SEPARATOR}c").send(None)
    assert fake.sent == []


async def test_the_first_ones_time_is_the_statements(fake: Server) -> None:
    """A statement for several ends when the first of them may wait no longer."""
    calls = together(fake)
    asked = [ask(calls, "a", until=until) for until in (5.0, 6.0, 7.0)]
    await turns()
    fake.sent[0].echo()
    await turns()
    assert fake.sent[1].until == 6.0
    fake.sent[1].echo()
    await asyncio.gather(*asked)


async def test_without_rows(fake: Server) -> None:
    """A statement that returns nothing has answered each call once it has ended."""
    calls = together(fake, returns=False)
    asked = [ask(calls, number) for number in "012"]
    await turns()
    for number in range(2):
        fake.sent[number].answer.set_result([])
        await turns()
    assert await asyncio.gather(*asked) == [(), (), ()]


@pytest.mark.parametrize("rows", [[], [(1,)], [(1,), (2,), (3,)]])
async def test_another_number_of_rows_is_no_answer(rows: list[tuple[int]], fake: Server) -> None:
    """Nobody is given the row of another: a statement with too few or too many answers none of its calls."""
    calls = together(fake)
    asked = [ask(calls, number) for number in "012"]
    await turns()
    fake.sent[0].answer.set_result([])
    await turns()
    fake.sent[1].answer.set_result(rows)
    assert await asyncio.gather(*asked) == [None, None, None]


async def test_a_statement_that_fails(fake: Server) -> None:
    """Its calls have no answer, the next ones are sent, and the session was given back."""
    calls = together(fake)
    asked = [ask(calls, number) for number in "012"]
    await turns()
    fake.sent[0].echo()
    await turns()
    later = ask(calls, "3")
    await turns()
    fake.sent[1].answer.set_exception(Unusable())
    await turns()
    assert fake.taken == 1
    fake.sent[2].echo()
    assert await asyncio.gather(*asked, later) == [("0",), None, None, ("3",)]


async def test_no_session(fake: Server) -> None:
    """Without a session there is no answer, for one and for several."""
    fake.refuses = True
    calls = together(fake)
    assert await asyncio.gather(*(calls.call(1e9, number) for number in "0123")) == [None] * 4
    assert fake.sent == []


async def test_who_leaves_takes_nobody_along(fake: Server) -> None:
    """One of several goes away: the statement is sent and finished, and the others have their rows."""
    calls = together(fake)
    asked = [ask(calls, number) for number in "01234"]
    await turns()
    asked[1].cancel()
    fake.sent[0].echo()
    await turns()
    assert fake.sent[1].values == ["1", "2", "3", "4"]
    asked[2].cancel()
    await turns()
    fake.sent[1].echo()
    await turns()
    assert [task.cancelled() for task in asked] == [False, True, True, False, False]
    assert [task.result() for task in asked if not task.cancelled()] == [("0",), ("3",), ("4",)]
    assert fake.taken == 0


async def test_a_lone_one_that_leaves(fake: Server) -> None:
    """The first goes away, its session with it: those behind it are taken up."""
    calls = together(fake)
    first, *others = [ask(calls, number) for number in "012"]
    await turns()
    first.cancel()
    await turns()
    assert fake.sent[1].values == ["1", "2"]
    fake.sent[1].echo()
    assert await asyncio.gather(*others) == [("1",), ("2",)]


async def test_one_that_is_cut_off(fake: Server) -> None:
    """A statement whose own task is ended, as the loop's end does, leaves no call waiting."""
    calls = together(fake)
    asked = [ask(calls, number) for number in "012"]
    await turns()
    fake.sent[0].echo()
    await turns()
    for task in calls._tasks:
        task.cancel()
    assert await asyncio.gather(*asked) == [("0",), None, None]
    assert fake.taken == 0


async def test_patience(fake: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that takes long stops nobody: those who wait go beside it, at most so many, and then one by one."""
    monkeypatch.setattr(postgres_together, "PATIENCE_S", 0.03)
    calls = together(fake)
    loop = asyncio.get_running_loop()
    asked = []
    for number in range(LANES):
        began = loop.time()
        asked.append(ask(calls, str(number)))
        await until(lambda wanted=number + 1: len(fake.sent) == wanted)  # type: ignore[misc]
        assert number == 0 or loop.time() - began > 0.02
    asked += [ask(calls, "late"), ask(calls, "last")]
    await asyncio.sleep(0.1)
    assert len(fake.sent) == LANES
    fake.sent[0].echo()
    await turns()
    assert [sent.values for sent in fake.sent[LANES:]] == [["late", "last"]]
    for sent in fake.sent[1:]:
        sent.echo()
    assert await asyncio.gather(*asked) == [*((str(number),) for number in range(LANES)), ("late",), ("last",)]


async def test_behind_a_stuck_one_the_next_follow_at_once(fake: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the newest statement has ended nobody's patience is asked for, though an older one is still under way."""
    monkeypatch.setattr(postgres_together, "PATIENCE_S", 0.01)
    calls = together(fake)
    stuck, second = ask(calls, "stuck"), ask(calls, "second")
    await until(lambda: len(fake.sent) == 2)
    monkeypatch.setattr(postgres_together, "PATIENCE_S", 600)
    third = ask(calls, "third")
    await turns()
    fake.sent[1].echo()
    await turns()
    fourth = ask(calls, "fourth")
    await turns()
    assert [sent.values for sent in fake.sent] == [["stuck"], ["second"], ["third"]]
    fake.sent[0].echo()
    await turns()
    assert len(fake.sent) == 3  # one is under way, and has not taken long
    fake.sent[2].echo()
    await turns()
    fake.sent[3].echo()
    for task, name in ((stuck, "stuck"), (second, "second"), (third, "third"), (fourth, "fourth")):
        assert await task == (name,)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["ask", "ask", "leave", "answer", "fail", "short", "turn"]), max_size=60))
def test_any_order_of_things(steps: list[str]) -> None:
    """Whatever comes, leaves, answers and fails, each call ends once: with its own row, without one, or cancelled."""

    async def main() -> None:
        fake = Server()
        calls = together(fake)
        asked: list[asyncio.Task[Any]] = []
        for number, step in enumerate(steps):
            waiting = [task for task in asked if not task.done()]
            open_ones = [sent for sent in fake.sent if not sent.answer.done()]
            if step == "ask":
                asked.append(ask(calls, str(len(asked))))
            elif step == "leave" and waiting:
                waiting[number % len(waiting)].cancel()
            elif step == "answer" and open_ones:
                open_ones[number % len(open_ones)].echo()
            elif step == "fail" and open_ones:
                open_ones[number % len(open_ones)].answer.set_exception(Unusable())
            elif step == "short" and open_ones:
                open_ones[number % len(open_ones)].answer.set_result([])
            elif step == "turn":
                await turns(number % 4)
        while not all(task.done() for task in asked) or calls._tasks:
            await turns()
            for sent in fake.sent:
                if not sent.answer.done():
                    sent.echo()
        for number, task in enumerate(asked):
            assert task.cancelled() or task.result() in (None, (str(number),))
        sent_calls = [call for sent in fake.sent for call in sent.values]
        assert len(sent_calls) == len(set(sent_calls))
        assert fake.taken == 0 and calls._sent == 0 and not calls._calls

    asyncio.run(main())
