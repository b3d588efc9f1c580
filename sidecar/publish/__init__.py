"""The projector: writes secret files into a root so that a reader never meets half of one (contract 7).

Importable without the command line: `read_manifest` or `read_directory` name the sources, `Inputs` reads them through
wipeable memory, `publish` writes them.
"""

from sidecar.publish.manifest import read_directory, read_manifest
from sidecar.publish.sources import Inputs, Source
from sidecar.publish.target import Unpublished, judge_target
from sidecar.publish.writer import How, Published, publish

__all__ = [
    "How",
    "Inputs",
    "Published",
    "Source",
    "Unpublished",
    "judge_target",
    "publish",
    "read_directory",
    "read_manifest",
]
