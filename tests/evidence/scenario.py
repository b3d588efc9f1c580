"""What is done and judged: two replicas, two generations, a deletion. Runs as the first process of a namespace.

`python -m tests.evidence.scenario DIRECTORY DESCRIPTOR LIMITS BROKEN`, started by `tests.evidence` alone.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from tests.evidence import inspection, linux, prefix
from tests.evidence.cell import METRICS_PORT, Cell, ip
from tests.evidence.gates import Failed, Record, Stop, require
from tests.evidence.launch import SECRETS, UID, Spec
from tests.evidence.limits import MEMORY_BYTES, PROCESSES, Limit
from tests.evidence.witness import Witness
from tests.kit import manifests
from tests.kit.environments import LOGIN, POOL
from tests.kit.pki import pki
from tests.kit.postgres import ROLE_PASSWORD, Database, Postgres, PostgresWorld
from tests.kit.world import LEASE_TOKEN, PEPPER_TEXT

VALUES: Final = f"{SECRETS}/qinglong3/worker-values"
IDENTITY: Final = f"{SECRETS}/qinglong3/worker-ingress"
_PRIVILEGES: Final = (
    "SELECT string_agg(privilege_type || ' ' || table_schema || '.' || table_name, ',' ORDER BY 1)"
    " FROM information_schema.role_table_grants WHERE grantee = 'ql3_secret_sidecar'"
)
_TABLES: Final = (
    "run_attempts", "run_dispatch_leases", "runs", "task_execution_revisions", "worker_credentials", "worker_sessions",
)  # fmt: skip


class Scenario:
    """The run, a step after the other; each step is a gate or two."""

    def __init__(self, directory: Path, record: Record, limits: list[list[Limit]], broken: str) -> None:
        """Prepare; nothing exists yet."""
        self.directory, self.record, self.limits, self.broken = directory, record, limits, broken
        self.values, self.identity, self.prefix = (directory / name for name in ("values", "identity", "prefix"))
        self.cells = [Cell(number, directory) for number in (1, 2)]
        self.witnesses: list[Witness] = []
        self.generations: list[list[str]] = []
        self.began: list[int] = []
        self.context = pki().client_context(pki().client, directory / "worker")

    def run(self, stack: ExitStack) -> None:
        """Go through every gate. Raises Stop where nothing further can be judged."""
        self._prefix()
        self._database(stack)
        self._begin(stack)
        for name in ("generation_1", "generation_2"):
            with self.record.gate(name, needed=name == "generation_1"):
                self._generation(publish=not (self.broken == "rotation" and name == "generation_2"))
        with self.record.gate("receipts"):
            inspection.receipts(self.world.execute, len(self.world.refs), len(self.generations))
        with self.record.gate("unavailable"):
            self._deletion()
        self._judge()
        with self.record.gate("stopped"):
            self._stop()

    def _prefix(self) -> None:
        with self.record.gate("prefix", needed=True):
            prefix.make(self.prefix)
            require(prefix.names(self.prefix) == set(prefix.locked()), "it holds other packages than the lock")
            open_to_others = [path for path in self.prefix.rglob("*") if path.lstat().st_uid or _writable(path)]
            require(not open_to_others, "a file of it may be written by others")
        self.record.fact("prefix_bytes", prefix.size(self.prefix))

    def _database(self, stack: ExitStack) -> None:
        with self.record.gate("database", needed=True):
            linux.leave_ipv6()
            ip("link", "set", "lo", "up")
            tempfile.tempdir = str(self.directory)
            self.server = Postgres(settings={"listen_addresses": "*"})
            stack.callback(self.server.remove)
            with (self.server.data / "pg_hba.conf").open("a", encoding="utf-8") as rules:
                rules.write("host all ql3_secret_sidecar 198.18.0.0/16 scram-sha-256\n")
            self.server.start()
            self.database: Database = stack.enter_context(self.server.database())
            self.world: PostgresWorld = self.database.build_world(refs=2)
            held = self.database.psql(_PRIVILEGES)
            wanted = [f"SELECT ql3.{table}" for table in _TABLES]
            wanted += ["INSERT ql3.security_audit_events", "INSERT secret_sidecar.receipts"]
            require(sorted(held.split(",")) == sorted(wanted), "the role has other rights than those")
        self.record.fact("postgresql", self.database.psql("SHOW server_version"))

    def _begin(self, stack: ExitStack) -> None:
        with self.record.gate("namespaces", needed=True):
            self._write_identity()
            self.values.mkdir(mode=0o755)
            for cell in self.cells:
                cell.connect()
                self.witnesses.append(stack.enter_context(Witness(cell.link)))
            for cell, limits in zip(self.cells, self.limits, strict=True):
                cell.start(self._spec(cell, limits))
            inspection.apart([cell.pid for cell in self.cells])
        with self.record.gate("ready", needed=True):
            for cell in self.cells:
                self._ready(cell)
        with self.record.gate("limits"):
            for cell, limits in zip(self.cells, self.limits, strict=True):
                inspection.limited(cell.pid, limits, {"memory": MEMORY_BYTES, "pids": PROCESSES})
        self.began = [cell.began() for cell in self.cells]

    def _ready(self, cell: Cell) -> None:
        try:
            cell.event("process_ready")
        except Failed:
            raise Failed(f"{cell.name} did not start: {cell.last_error()}") from None
        self.record.fact(f"{cell.name}_launch_to_ready_s", round(inspection.since(cell.started), 3))
        status, body = inspection.until(lambda: cell.get("/readyz"), lambda got: got[0] == 200)
        require(status == 200, f"{cell.name} is not ready: {body}")

    def _write_identity(self) -> None:
        made = pki()
        self.identity.mkdir(mode=0o755)
        files = {
            "tls.key": made.server.key_pem,
            "tls.crt": made.server.chain_pem,
            "client-ca.crt": made.ca_pem,
            "pepper": PEPPER_TEXT.encode(),
            "database-password": ROLE_PASSWORD.encode(),
        }
        for name, content in files.items():
            path = self.identity / name
            path.write_bytes(content)
            os.chown(path, 0, UID)
            path.chmod(0o440)

    def _spec(self, cell: Cell, limits: Sequence[Limit]) -> Spec:
        mounts = {VALUES: str(self.values), IDENTITY: str(self.identity)}
        if self.broken == "token":
            account = self.directory / "account"
            account.mkdir(exist_ok=True)
            (account / "token").write_text("no token", encoding="ascii")
            mounts[f"{SECRETS}/kubernetes.io/serviceaccount"] = str(account)
        return Spec(
            name=cell.name,
            root=str(cell.root),
            prefix=str(self.prefix),
            mounts=mounts,
            address=f"{cell.inside}/30",
            api=cell.outside,
            groups=[limit.procs for limit in limits],
            environment=self._environment(cell),
            broken=self.broken,
        )

    def _environment(self, cell: Cell) -> dict[str, str]:
        """The base's own variables; only the database is here and speaks no TLS, and receipts are on."""
        given = manifests.ours(manifests.documents("base"))["env"]
        plain = {each["name"]: each["value"] for each in given if "value" in each and not each["name"].startswith(POOL)}
        return plain | {
            "PYTHONDONTWRITEBYTECODE": "1",
            "QL3_CLUSTER_REPLICA_ID": cell.name,
            "QL3_SECRET_SIDECAR_RECEIPTS": "on",
            "QL3_SECRET_SIDECAR_SHUTDOWN_DELAY_MS": "0",
            f"{LOGIN}HOST": cell.outside,
            f"{LOGIN}PORT": str(self.server.port),
            f"{LOGIN}DATABASE": self.database.name,
            f"{LOGIN}USER": "ql3_secret_sidecar",
            f"{POOL}TLS_MODE": "disable",
            f"{POOL}ALLOW_INSECURE": "true",
            # Every pod has these; whoever would talk to the API server finds it by them.
            "KUBERNETES_SERVICE_HOST": cell.outside,
            "KUBERNETES_SERVICE_PORT": "443",
        }

    def _generation(self, *, publish: bool) -> None:
        """Publish new values as a projector does, then have both deliver them."""
        number = len(self.generations) + 1
        made = [f"generation-{number}-{secrets.token_hex(16)}" for _ in self.world.refs]
        self.generations.append(made)
        if publish:
            self._publish(made)
        for cell in self.cells:
            answer = cell.ask(self.world, self.context)
            require(answer.status == 200, f"{cell.name} answered {answer.status}")
            delivered = [item["value"] for item in answer.json()["values"]]
            require(delivered == made, f"{cell.name} delivered other values than those of generation {number}")

    def _publish(self, values: Sequence[str]) -> None:
        source = self.directory / "source"
        source.mkdir(mode=0o700, exist_ok=True)
        entries = []
        for ref, value in zip(self.world.refs, values, strict=True):
            (source / ref.file_name).write_text(value, encoding="ascii")
            entries.append({"ref": ref.text, "file": ref.file_name})
        manifest = source / "manifest.json"
        manifest.write_text(json.dumps({"schemaVersion": 1, "secrets": entries}), encoding="ascii")
        command = [str(self.prefix / "bin" / "python"), "-I", "-m", "sidecar", "publish", str(self.values)]
        command += ["--manifest", str(manifest), "--group", str(UID)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
        require(done.returncode == 0, f"publish ended with {done.returncode}")

    def _deletion(self) -> None:
        """Delete the projection, as when its Secret is deleted; the root is empty then."""
        for path in self.values.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for cell in self.cells:
            answer = cell.ask(self.world, self.context)
            require(answer.code == "worker_ingress_unavailable", f"{cell.name} answered {answer.code}")
            while True:
                event = cell.event("request_completed")
                if event["code"] != "delivered":
                    break
            told = (event.get("providerCode"), event.get("providerReason"))
            wanted = ("QL3_CLUSTER_MOUNTED_SECRET_UNAVAILABLE", "material_unavailable")
            require(told == wanted, f"the event of {cell.name} says another provider code or reason")

    def _judge(self) -> None:
        pids = [cell.pid for cell in self.cells]
        with self.record.gate("no_restart"):
            for cell, began in zip(self.cells, self.began, strict=True):
                require(cell.began() == began, f"{cell.name} is another process than at first")
        with self.record.gate("identity"):
            for pid in pids:
                inspection.powerless(pid, UID)
        with self.record.gate("read_only"):
            for pid in pids:
                inspection.read_only(pid)
        with self.record.gate("no_token"):
            for pid in pids:
                inspection.no_token(pid, {VALUES, IDENTITY})
        with self.record.gate("no_api_traffic"):
            for cell, witness in zip(self.cells, self.witnesses, strict=True):
                inspection.traffic(cell, witness, self.server.port)
                peers = [f"{source} to {target}:{port}" for source, target, port in sorted(witness.opened)]
                self.record.fact(f"{cell.name}_connections", peers)
        with self.record.gate("quiet"):
            hidden = [*self.generations[0], *self.generations[1], *(ref.text for ref in self.world.refs)]
            hidden += [self.world.token, LEASE_TOKEN, PEPPER_TEXT, ROLE_PASSWORD]
            shown = [part for cell in self.cells for part in (*cell.output, cell.errors())]
            shown += [cell.get("/metrics", METRICS_PORT)[1] for cell in self.cells]
            shown += [repr(self.world.audit()), self.server.log]
            require(not any(each in part for each in hidden for part in shown), "something secret is shown")
        with self.record.gate("within_limits"):
            for cell, limits in zip(self.cells, self.limits, strict=True):
                self.record.fact(f"{cell.name}_memory", inspection.memory(cell.pid, limits))
                require(limits and not any(limit.met() for limit in limits), f"{cell.name} met a limit, or had none")

    def _stop(self) -> None:
        for cell in self.cells:
            os.kill(cell.pid, signal.SIGTERM)
        for cell in self.cells:
            assert cell.launcher is not None
            code = cell.launcher.wait(30)
            require(code == 0, f"{cell.name} ended with {code}")


def _writable(path: Path) -> bool:
    return not path.is_symlink() and bool(path.stat().st_mode & 0o022)


def main(arguments: Sequence[str]) -> int:
    """Run the scenario; 0 also when a gate fails, since the record says so."""
    linux.die_with_parent()
    directory, record = Path(arguments[0]), Record(int(arguments[1]))
    limits = [[Limit(**each) for each in cell] for cell in json.loads(arguments[2])]
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    with ExitStack() as stack, suppress(Stop):
        Scenario(directory, record, limits, arguments[3]).run(stack)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
