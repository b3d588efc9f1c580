"""What configuration names, put together: two tables of adapters, each imported only when it is chosen (contract 8)."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal, Protocol

from provider.memory import BufferPool
from provider.outcomes import Refused
from provider.ports import AuditLog, AuthorityStore, CredentialStore, SecretProvider
from sidecar.config import Config
from sidecar.identityfiles import IdentityFiles
from sidecar.metrics import Metrics
from sidecar.reload import IdentityHolder
from sidecar.trust import IdentityFault

State = Literal["ok", "failed"]


class Store(CredentialStore, AuditLog, AuthorityStore, Protocol):
    """An authority store as the process keeps it."""

    def health(self) -> State:
        """Tell readiness of the store, at once."""

    def close(self) -> None:
        """Give everything back."""


class Provider(SecretProvider, Protocol):
    """A provider as the process keeps it."""

    def verify_root(self) -> None:
        """Judge what must hold before listening. Raises `Refused`."""

    def health(self) -> State:
        """Tell readiness of the material, at once."""


@dataclass(frozen=True, slots=True)
class StartFault:
    """Why the process does not start: a code of a closed set, and words for whoever mends it.

    `wrong` has no full stop, `mend` is a whole sentence.
    """

    code: str
    variable: str
    wrong: str
    mend: str


class StartFaults(Exception):
    """Everything that stands against a start. Never empty."""

    def __init__(self, faults: list[StartFault]) -> None:
        """Raise for these faults."""
        super().__init__()
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class StoreHooks:
    """What a store tells while it serves."""

    on_fault: Callable[[StartFault], None]
    """That it cannot be served at all, as its first answer shows (contract 9)."""
    on_event: Callable[..., None]
    """Events, as `Events.emit`."""


_OPENS: Final = ("material_opens", "Files opened beneath the root.")
_DRIFT: Final = ("drift", "Reads during which a projector changed what was read.")
_UNACKNOWLEDGED: Final = ("receipts_unacknowledged", "Receipts of a last byte that could not be written.")


def _mounted_files(config: Config, pool: BufferPool, metrics: Metrics, on_fatal: Callable[[], None]) -> Provider:
    module = import_module("provider.mounted")
    files = module.MountedFiles(config.root_directory, pool, on_fatal=on_fatal)
    metrics.counter(*_OPENS, lambda: files.stats.opens)
    metrics.counter(*_DRIFT, lambda: files.stats.drift)
    metrics.counter("material_retries", "Batches read a second time.", lambda: files.stats.retries)
    metrics.counter("material_unavailable", "Batches refused by the provider.", lambda: files.stats.unavailable)
    metrics.gauge("stuck_threads", "Reader threads that wait for a hung root.", lambda: files.stats.stuck_threads)
    provider: Provider = files
    return provider


PROVIDERS: Final[dict[str, Callable[[Config, BufferPool, Metrics, Callable[[], None]], Provider] | None]] = {
    "disabled": None,
    "mounted-files": _mounted_files,
}
"""The one table of providers, by `QL3_WORKER_SECRET_PROVIDER`."""


async def _sqlite(config: Config, metrics: Metrics, _hooks: StoreHooks) -> Store:
    module = import_module("sidecar.stores.sqlite")
    store = module.SqliteStore(config.authority_file, receipts=config.receipts)
    store.open()

    def stat(name: str) -> Callable[[], float]:
        return lambda: float(getattr(store.stats, name))

    metrics.gauge("store_bytes", "Bytes of the store file and its write-ahead log.", stat("store_bytes"))
    metrics.gauge("store_free_bytes", "Free bytes of the store's file system.", stat("free_bytes"))
    metrics.gauge("audit_oldest_age_seconds", "Age of the oldest audit row.", stat("oldest_audit_age_s"))
    metrics.counter("store_lock_waits", "Writes that waited for the write lock.", stat("lock_waits"))
    metrics.counter("store_lock_wait_seconds", "Time that writes waited for the write lock.", stat("lock_wait_s"))
    metrics.counter(*_UNACKNOWLEDGED, stat("lost_acknowledgements"))
    metrics.counter("store_disk_full", "Writes that failed for want of space.", stat("full_disk_failures"))
    metrics.counter(
        "store_checkpoint_failures", "Checkpoints of the write-ahead log that failed.", stat("checkpoint_failures")
    )
    opened: Store = store
    return opened


async def _postgres(config: Config, metrics: Metrics, hooks: StoreHooks) -> Store:
    module = import_module("sidecar.stores.postgres")
    store = module.PostgresStore(
        config.postgres,
        receipts=config.receipts,
        on_fault=lambda fault: hooks.on_fault(_start_fault(config, fault)),
        on_wrong=lambda kind: hooks.on_event("authority_rights_wrong", level="error", fault=kind.value),
    )
    await store.open()

    def stat(name: str) -> Callable[[], float]:
        return lambda: float(getattr(store.stats.pool, name))

    metrics.gauge("store_sessions", "Open sessions of the database.", stat("sessions"))
    metrics.gauge("store_sessions_used", "Sessions of the database in use.", stat("used"))
    metrics.counter("store_session_waits", "Calls that found every session in use.", stat("waits"))
    metrics.counter("store_sessions_opened", "Sessions opened.", stat("opened"))
    metrics.counter("store_session_failures", "Sessions that could not be opened.", stat("open_failures"))
    metrics.counter("store_sessions_broken", "Sessions that ended in use: an answer lost or late.", stat("broken"))
    metrics.counter(*_UNACKNOWLEDGED, lambda: store.stats.lost_acknowledgements)
    opened: Store = store
    return opened


STORES: Final[dict[str, Callable[[Config, Metrics, StoreHooks], Awaitable[Store]]]] = {
    "sqlite": _sqlite,
    "postgres": _postgres,
}
"""The one table of stores, by `QL3_WORKER_SECRET_AUTHORITY`."""

_STORE_VARIABLES: Final = {"sqlite": "QL3_WORKER_SECRET_AUTHORITY_FILE", "postgres": "QL3_WORKER_SECRET_AUTHORITY"}
_ROOT_MENDS: Final = {
    "invalid_configuration": "must be an absolute, normalised path that is not /",
    "root_unavailable": "must name a directory, no link, that only its owner may write unless it is mounted read-only",
}


def prepare_provider(
    config: Config, pool: BufferPool, metrics: Metrics, on_fatal: Callable[[], None], faults: list[StartFault]
) -> Provider | None:
    """Return the chosen provider, its root judged; adds to `faults` what is wrong with it."""
    make = PROVIDERS[config.provider]
    if make is None:
        # Shown all the same: a missing series would not say that nothing was opened.
        for name, text in (_OPENS, _DRIFT):
            metrics.counter(name, text, lambda: 0)
        return None
    provider = make(config, pool, metrics, on_fatal)
    try:
        provider.verify_root()
    except Refused as refused:
        why = refused.reason.value.provider_reason or "root_unavailable"
        faults.append(
            StartFault(
                why,
                "QL3_WORKER_SECRET_ROOT_DIRECTORY",
                _ROOT_MENDS.get(why, why),
                "Mount the secrets there, or name the right directory.",
            )
        )
    return provider


def prepare_identity(config: Config, on_event: Callable[..., None], faults: list[StartFault]) -> IdentityHolder | None:
    """Return the holder of the first TLS snapshot, or None after adding to `faults`."""
    files = IdentityFiles(config.tls.private_key, config.tls.certificate, config.tls.client_ca, config.tls.client_crl)
    try:
        return IdentityHolder(files, on_event)
    except IdentityFault as fault:
        for found in fault.faults:
            code, mend = found.fault.code, found.fault.mend
            wrong = f"names a file that cannot be used: {code.replace('_', ' ')}"
            faults.append(StartFault(code, found.role.variable, wrong, f"{mend[0].upper()}{mend[1:]}."))
        return None


async def prepare_store(config: Config, metrics: Metrics, hooks: StoreHooks, faults: list[StartFault]) -> Store | None:
    """Return the opened store, or None after adding to `faults`."""
    store_fault = import_module("sidecar.stores.faults").StoreFault
    try:
        return await STORES[config.authority](config, metrics, hooks)
    except store_fault as fault:
        faults.append(_start_fault(config, fault))
        return None


def _start_fault(config: Config, fault: Any) -> StartFault:
    """Tell a StoreFault, whose module is not imported here."""
    variable = _STORE_VARIABLES[config.authority]
    return StartFault(f"store_{fault.kind.value}", variable, fault.wrong.rstrip("."), fault.mend)
