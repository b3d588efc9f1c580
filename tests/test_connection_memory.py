"""What a connection held is given back when it ends, not when some later collection finds it."""

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from sidecar.connection import Connection
from tests.kit.edge import Client, Edge, edge, request


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Edge]:
    """The valid world, served."""
    async with edge(tmp_path) as running:
        yield running


@pytest.fixture
def uncollected() -> Iterator[None]:
    """While the test runs nothing is collected: what is in a cycle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def closes_idle(served: Edge, client: Client) -> None:
    """The worker is done and closes, as nearly all do."""
    assert (await client.ask()).status == 200
    await client.close()


async def closes_at_once(served: Edge, client: Client) -> None:
    """The worker asks for nothing."""
    await client.close()


async def resets_in_the_middle(served: Edge, client: Client) -> None:
    """The worker is gone while its request runs."""
    client.send(request()[:-1])
    await served.until(lambda: served.metrics.in_flight == 1)
    client.reset()


async def is_sent_away(served: Edge, client: Client) -> None:
    """The connection ends with a refusal."""
    assert (await client.ask(request(authorization=None))).closed is False
    assert await client.ended() == b""


async def runs_out(served: Edge, client: Client) -> None:
    """Nothing comes for so long that we close."""
    served.connection.due = 0.0
    assert await client.ended() == b""


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("end", [closes_idle, closes_at_once, resets_in_the_middle, is_sent_away, runs_out])
async def test_nothing_of_a_connection_outlives_it(
    served: Edge, end: Callable[[Edge, Client], Awaitable[None]]
) -> None:
    """However a connection ends, no cycle keeps it, nor the buffers that TLS has for it."""
    for _ in range(3):
        await end(served, await served.client())
        await served.until(lambda: not served.listener.connections and not served.listener._serving)
    await served.until(lambda: not any(isinstance(each, Connection) for each in gc.get_objects()))
