"""The product, in one function: authenticate, audit, body, authority, material, commit, delivery, wipe.

Read `deliver` from top to bottom. Each step takes what only the step before can make: no `Principal`, no audit row that
says allowed; no `Admitted`, no body; no `Authority`, no file; no confirmed COMMIT, no `Permit`; no `Permit`, no byte. A
step returns its value or raises `Refused`. Buffers are owned by `with` blocks, so every way out wipes them.
"""

import asyncio
from contextlib import nullcontext, suppress
from typing import Final, final

from provider import limits, receipts, strictjson, wire
from provider.authority import Authority, commit, verify
from provider.command import parse_command
from provider.credential import Principal, authenticate, present
from provider.material import Batch
from provider.outcomes import Reason, Refused, Stage
from provider.ports import AuditRecord, Exchange, Ports, SecretProvider

_SEAL: Final = object()


@final
class Admitted:
    """A principal whose audit row is written: leave to read the body. Made by `admit` alone."""

    __slots__ = ("principal",)

    def __init__(self, seal: object, principal: Principal) -> None:
        """Raises TypeError for every caller but `admit`."""
        if seal is not _SEAL:
            raise TypeError("only admit makes an Admitted")
        self.principal = principal


async def deliver(exchange: Exchange, ports: Ports) -> None:
    """Serve one request for secrets, or raise `Refused` with the reason of the first rule that does not hold."""
    admitted = await admit(exchange, ports)
    with exchange.occupy(admitted.principal), wire.Response(ports.pool) as response:
        body = await exchange.body(admitted)
        document = strictjson.parse(body)
        if ports.provider is None:
            exchange.enter(Stage.DELIVERY)
            raise Refused(Reason.PROVIDER_DISABLED)
        exchange.enter(Stage.COMMAND)
        command = parse_command(document)
        del body, document  # they hold the lease token
        exchange.enter(Stage.AUTHORITY)
        slow = not ports.provider.inline()
        async with ports.authority.hold(admitted.principal, command, exchange.deadline, slow_material=slow) as hold:
            authority = verify(admitted.principal, exchange.session_id, command, hold)
            exchange.enter(Stage.PROVIDER)
            with await _material(ports.provider, authority, exchange.deadline, slow=slow) as batch:
                _hold_to(authority, batch)
                given = () if ports.receipt_key is None else receipts.draw(ports.receipt_key, batch)
                # Encoded before COMMIT: an answer over its limit leaves no receipt of a release that never was.
                wire.encode(response, command, batch, ports.response_limit)
            exchange.enter(Stage.AUTHORITY)
            permit = await commit(hold, authority, given)
        exchange.enter(Stage.DELIVERY)
        await exchange.send(permit, response)
    if given:
        await ports.authority.acknowledge(permit, given)


async def admit(exchange: Exchange, ports: Ports) -> Admitted:
    """Authenticate and write the audit row, of a rejection too: nothing is learnt without a record."""
    exchange.enter(Stage.AUTHENTICATION)
    try:
        presented = present(exchange.authorization())
        row, now_ms = await ports.credentials.newest(presented.credential_id)
        principal = authenticate(presented, exchange.worker_id, row, now_ms, ports.peppers, exchange.peer_names())
    except Refused as refused:
        rejected = refused.reason is Reason.UNAUTHENTICATED
        exchange.authentication_ended(failed=rejected)
        exchange.enter(Stage.AUDIT)
        outcome = "authentication_rejected" if rejected else "authentication_unavailable"
        # For a store that failed the row is best effort: the answer is a 503 either way.
        with nullcontext() if rejected else suppress(Refused):
            await ports.audit.record(AuditRecord(exchange.request_id, outcome, None))
        raise
    exchange.authentication_ended(failed=False)
    exchange.enter(Stage.AUDIT)
    await ports.audit.record(AuditRecord(exchange.request_id, "allowed", principal))
    return Admitted(_SEAL, principal)


async def _material(provider: SecretProvider, authority: Authority, deadline: float, *, slow: bool) -> Batch:
    """Resolve within 2 s (contract 6.7); an inline provider cannot be interrupted and needs no timer."""
    if not slow:
        return await provider.resolve(authority, deadline)
    try:
        async with asyncio.timeout(limits.MATERIAL_S):
            return await provider.resolve(authority, deadline)
    except TimeoutError:
        raise Refused(Reason.ROOT_UNAVAILABLE) from None


def _hold_to(authority: Authority, batch: Batch) -> None:
    """Raise `Refused(MATERIAL_UNAVAILABLE)` unless a provider brought exactly the refs asked for, in their order."""
    asked = [(ref, False) for ref in authority.secret_refs] + [(ref, True) for ref in authority.bundle_refs]
    if [(slot.ref, slot.bundle) for slot in batch.slots] != asked:
        raise Refused(Reason.MATERIAL_UNAVAILABLE)
