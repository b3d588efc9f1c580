"""What is wrong with a root of secret files, found without changing anything (contract 7).

`examine(path, known)` returns an `Examination`: findings, each with its exact mend, and facts about every file and
generation. Nothing of a value is in either.
"""

from sidecar.doctor.examine import Examination, Known, examine
from sidecar.doctor.refs import read_refs

__all__ = ["Examination", "Known", "examine", "read_refs"]
