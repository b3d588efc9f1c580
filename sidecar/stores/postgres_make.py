"""Make the seven tables and the receipts in a PostgreSQL database, and migrate them. Run by commands only."""

from dataclasses import dataclass
from typing import Final

from sidecar.stores.postgres_control import PostgresControl
from sidecar.stores.postgres_schema import (
    RECEIPTS,
    RECEIPTS_SCHEMA,
    RECEIPTS_TABLE,
    SCHEMA,
    VERSION,
    migration_script,
)

_OCCUPIED: Final = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relnamespace = to_regnamespace($1))"


@dataclass(frozen=True, slots=True)
class Made:
    """What `initialise` made, and whose the schema is."""

    tables: bool
    receipts: bool
    ours: bool


async def initialise(control: PostgresControl, *, receipts: bool) -> Made:
    """Make whatever is missing of our schema and, when asked, of the receipts; change nothing that is there.

    On a schema that our migrations did not make, QL3's, only the receipts are made, in their own schema. Raises
    StoreFault(FOREIGN) there when they are not asked for.
    """
    async with control.turn():
        ours = await control.version() is not None
        made = False
        if not ours and not await control.connection.fetchval(_OCCUPIED, SCHEMA):
            await control.connection.execute(migration_script(0))
            ours = made = True
        if ours or not receipts:
            await control.require_ours()
        missing = receipts and not await _has_receipts(control)
        if missing:
            await control.connection.execute(RECEIPTS)
    return Made(made, missing, ours)


async def migrate(control: PostgresControl) -> int | None:
    """Bring our schema to the current version. Returns the version before, None when there was nothing to do."""
    async with control.turn():
        version = await control.version()
        if version is None or version >= VERSION:
            await control.require_ours()
            return None
        await control.connection.execute(migration_script(version))
        return version


async def _has_receipts(control: PostgresControl) -> bool:
    return bool(
        await control.connection.fetchval("SELECT to_regclass($1) IS NOT NULL", f"{RECEIPTS_SCHEMA}.{RECEIPTS_TABLE}")
    )
