"""What the conformance suite needs of a store under test: the ports, a valid world in it, and an outside hand."""

from typing import Protocol

from provider.ports import AuditLog, AuthorityStore, CredentialStore
from tests.kit.world import World


class Store(CredentialStore, AuditLog, AuthorityStore, Protocol):
    """The three ports of a store, in one."""


class Bed(Protocol):
    """A store that serves a valid world with one row in each of the six tables, receipts on."""

    @property
    def store(self) -> Store:
        """The store under test."""

    @property
    def world(self) -> World:
        """What is in the store and what its worker knows. The suite uses no method of it that reaches a file."""

    @property
    def untyped(self) -> bool:
        """Whether a column takes a value of any type."""

    async def change(self, table: str, **columns: object) -> None:
        """Change columns of every row of a table, as another program would, and commit."""

    async def insert(self, table: str, **row: object) -> None:
        """Insert a row and commit."""

    async def delete(self, table: str) -> None:
        """Delete every row of a table and commit."""

    async def rows(self, table: str) -> list[dict[str, object]]:
        """Return every committed row of a table, oldest first."""
