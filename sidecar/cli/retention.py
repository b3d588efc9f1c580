"""`secret-sidecar retention`: plan which old versions go, and let them go; put back what is asked for meanwhile."""

import argparse
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from provider.limits import BUNDLE_BYTES
from sidecar import kubernetes
from sidecar.cli.common import Exit, Fault, duration_ms, lines, print_table, write_private
from sidecar.cli.inventory import plan_findings
from sidecar.cli.reports import report
from sidecar.cli.store_reading import add_store_options, files_in_force, read_references
from sidecar.doctor.examine import label
from sidecar.doctor.place import KUBELET
from sidecar.findings import Finding, counted, printable
from sidecar.publish import How, Inputs, Source, Unpublished, judge_target, publish
from sidecar.publish.target import DATA
from sidecar.retention import BadPlan, Plan, judge, read, written

PLAN_BYTES: Final = 64 << 20
_OWNER_ONLY: Final = 0o400


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the two actions."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    plan = actions.add_parser("plan", help="write down which old versions may go, and why each other stays")
    plan.add_argument("root", metavar="ROOT", help="the directory that serve reads")
    plan.add_argument("--keep-for", type=duration_ms, required=True, metavar="T", help="how old a value must be: 30d")
    plan.add_argument("--keep-versions", type=_count, default=0, metavar="N", help="keep the newest N of each secret")
    plan.add_argument("--out", required=True, metavar="P.json", help="the plan; replaced when it exists")
    plan.epilog = (
        "example:\n  secret-sidecar retention plan /srv/secrets --keep-for 30d --out plan.json --file store.db"
    )
    apply = actions.add_parser("apply", help="publish without what a plan drops, or print the keys of a Secret")
    apply.add_argument("plan", metavar="P.json", help="what `retention plan` wrote")
    apply.epilog = "example:\n  secret-sidecar retention apply plan.json --file store.db"
    for action in (plan, apply):
        add_store_options(action)
        action.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    parser.epilog = lines(
        (
            "Only a versioned ref goes, and only when no live run and no newest revision names it.",
            "apply reads the store again before and after: with 1 the plan was not true any more, and every value is",
            "in force as before.",
            "",
            "example:",
            "  secret-sidecar retention plan /srv/secrets --keep-for 30d --out plan.json --file store.db",
        )
    )


def run(args: argparse.Namespace) -> int:
    """Do the action."""
    return _plan(args) if args.action == "plan" else _apply(args)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError("a whole number from 0")
    return int(text)


def _plan(args: argparse.Namespace) -> int:
    root = os.path.abspath(args.root)
    files = files_in_force(root)
    named, _, now_ms = read_references(args)
    judged = judge(named, files, now_ms, args.keep_for, args.keep_versions)
    write_private(args.out, written(root, judged, now_ms, args.keep_for, args.keep_versions), replace=True)
    drops = sum(one.reason is None for one in judged)
    found = plan_findings(named)
    summary = {"drop": drops, "keep": len(judged) - drops, **counted(found)}
    code = report("retention plan", found, summary, as_json=args.json)
    if not args.json:
        if judged:
            names = ("?" if one.ref is None else printable(label(one.ref)) for one in judged)
            rows = zip(judged, names, strict=True)
            print_table([("keep" if one.reason else "drop", name, one.reason or "old enough") for one, name in rows])
        print(f"{drops} to drop, {len(judged) - drops} to keep")
    return code


def _apply(args: argparse.Namespace) -> int:
    plan = _read(args.plan)
    files = files_in_force(plan.root)
    drops = [drop for drop in plan.drops if drop.ref.file_name in files]
    names = [drop.ref.file_name for drop in drops]
    if any(files[drop.ref.file_name] != drop.written_ms for drop in drops):
        raise Fault(Exit.FAILED, "A file of the plan was written since.", "Nothing was changed; plan again.")
    if _asked_for(args, names):
        raise Fault(Exit.FAILED, "The plan drops what is asked for by now.", "Nothing was changed; plan again.")
    if _is_projected(plan.root):
        return _keys(args, names)
    faults = [finding for finding in judge_target(plan.root) if finding.severity == "error"]
    if faults:
        return report("retention apply", faults, {"dropped": 0, **counted(faults)}, as_json=args.json)
    if names:
        try:
            _drop(args, plan.root, names)
        except Unpublished as unpublished:
            found = unpublished.findings
            return report("retention apply", found, {"dropped": 0, **counted(found)}, as_json=args.json)
        except OSError as error:
            wrong = f"The file system refused ({error.strerror}); every value in force is whole."
            raise Fault(Exit.FAILED, wrong, "Mend the cause and publish again.") from None
    code = report("retention apply", [], {"dropped": len(names), **counted([])}, as_json=args.json)
    if not args.json:
        print(f"dropped {len(names)}")
    return code


def _read(path: str) -> Plan:
    try:
        with open(path, "rb") as file:
            return read(file.read(PLAN_BYTES))
    except OSError as error:
        raise Fault(Exit.BAD_INPUT, f"The plan cannot be read ({error.strerror}).", "Look at its name.") from None
    except BadPlan:
        raise Fault(Exit.BAD_INPUT, "This is no plan.", "Write one with `secret-sidecar retention plan`.") from None


def _asked_for(args: argparse.Namespace, names: Sequence[str]) -> bool:
    """Tell whether the store names one of these now, or may do so: the revision of a live run is lost."""
    named, _, _ = read_references(args)
    return bool(named.lost) or any(name in named.named and named.named[name].wanted for name in names)


def _drop(args: argparse.Namespace, root: str, names: Sequence[str]) -> None:
    """Publish without these; when the store names one of them then, publish them again from memory."""
    linked = os.path.islink(f"{root}/{DATA}")
    folder = f"{root}/{DATA}" if linked else root
    status = os.stat(f"{folder}/{names[0]}")
    mode = 0o400 if stat.S_IMODE(status.st_mode) == _OWNER_ONLY else 0o440
    how = How("linked" if linked else "flat", mode, status.st_gid, prune=False, drop=frozenset(names))
    with ExitStack() as custody:
        sources = [Source(name, name, f"{folder}/{name}", BUNDLE_BYTES) for name in names]
        with Inputs(sources) as inputs:
            held = []
            for source in sources:
                with inputs.value(source) as view:
                    buffer = custody.enter_context(inputs.pool.take(len(view)))
                    buffer.view[:] = view
                held.append(Source(source.file_name, source.where, None, BUNDLE_BYTES, held=buffer))
        with Inputs(()) as nothing:
            publish(root, nothing, how)
        try:
            again = _asked_for(args, names)
        except BaseException:
            _put_back(root, held, how)
            raise
        if again:
            _put_back(root, held, how)
            wrong = "A reference appeared while the values were dropped; they are in force again."
            raise Fault(Exit.FAILED, wrong, "Plan again.")


def _put_back(root: str, held: Sequence[Source], how: How) -> None:
    with Inputs(held) as inputs:
        publish(root, inputs, How(how.layout, how.mode, how.gid))


def _is_projected(root: str) -> bool:
    """Tell whether a kubelet or CSI writes the root, so that its Secret is what has to be changed."""
    try:
        return KUBELET.fullmatch(os.readlink(f"{root}/{DATA}")) is not None
    except OSError:
        return False


def _keys(args: argparse.Namespace, names: Sequence[str]) -> int:
    """Print the keys to drop from the Secret; nothing is changed here."""
    patch = 'kubectl patch secret {} -n {} --type=json -p \'[{{"op":"remove","path":"/data/{}"}}]\''
    found = [
        Finding(
            "drop_key",
            name,
            "the Secret's key may go",
            patch.format(kubernetes.VALUES, kubernetes.NAMESPACE, name),
            "info",
        )
        for name in names
    ]
    code = report("retention apply", found, {"dropped": 0, "keys": list(names), **counted(found)}, as_json=args.json)
    if not args.json:
        print(f"{len(names)} keys to drop from the Secret; nothing was changed here")
    return code
