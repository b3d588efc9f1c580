"""One connection to PostgreSQL, for the commands (contract 8): explicit in everything, so no PG* variable counts."""

import ssl
from typing import Any, Final

import asyncpg

from sidecar.postgres_config import Postgres, PostgresTls
from sidecar.secret_file import SecretFileFault
from sidecar.stores.faults import StoreFault, StoreFaultKind

_COMMAND_S: Final = 60.0


class _Named(ssl.SSLContext):
    """A context that asks for one name, whatever host the driver has connected to."""

    name: str

    def wrap_bio(self, *args: Any, **how: Any) -> ssl.SSLObject:
        """As the base class, with our name."""
        return super().wrap_bio(*args, **how | {"server_hostname": self.name})


def tls_context(tls: PostgresTls) -> ssl.SSLContext:
    """Return a context for `verify-full`: chain, dates and the name. Raises OSError when the CA file cannot be read."""
    context = _Named(ssl.PROTOCOL_TLS_CLIENT)
    context.name = tls.server_name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.ca_file is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(tls.ca_file)
    return context


async def connect(postgres: Postgres) -> Any:
    """Return a new connection of asyncpg, its password file read just now. Raises StoreFault."""
    try:
        context = None if postgres.tls is None else tls_context(postgres.tls)
    except OSError:  # of the file, or of TLS for what it holds
        wrong, mend = (
            "The CA file of PostgreSQL cannot be used.",
            "Name a file that this user may read, of PEM certificates.",
        )
        raise StoreFault(StoreFaultKind.UNREACHABLE, wrong, mend) from None
    try:
        return await asyncpg.connect(
            host=postgres.host,
            port=postgres.port,
            database=postgres.database,
            user=postgres.user,
            password=postgres.password.read(),
            ssl="disable" if context is None else context,
            timeout=postgres.connection_timeout_ms / 1000,
            command_timeout=_COMMAND_S,
            server_settings={"application_name": postgres.application_name},
        )
    except SecretFileFault as fault:
        raise StoreFault(StoreFaultKind.LOGIN, f"The password variable {fault.wrong}.", fault.mend) from None
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError):
        raise StoreFault(
            StoreFaultKind.LOGIN,
            "PostgreSQL refused the login.",
            "Check user, password and database, and that the server's pg_hba.conf lets them in.",
        ) from None
    except (ssl.SSLError, OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if isinstance(error, ssl.SSLCertVerificationError):
            wrong, mend = "PostgreSQL's certificate is not good.", "Check CA file, server name and the dates of both."
        else:
            wrong, mend = "PostgreSQL cannot be reached.", "Check host and port, TLS on both sides, and that it runs."
        raise StoreFault(StoreFaultKind.UNREACHABLE, wrong, mend) from None
