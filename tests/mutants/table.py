"""All mutants. A row names a promise, a line of a file, what becomes of it, and the test that must then fail."""

from typing import Final

from tests.mutants.asking import ASKING
from tests.mutants.configuring import CONFIGURING
from tests.mutants.counting import COUNTING
from tests.mutants.deciding import DECIDING
from tests.mutants.holding import HOLDING
from tests.mutants.keeping_postgres import KEEPING_POSTGRES
from tests.mutants.mutant import Mutant
from tests.mutants.publishing import PUBLISHING
from tests.mutants.renewing import RENEWING
from tests.mutants.serving import SERVING
from tests.mutants.storing import STORING
from tests.mutants.storing_postgres import STORING_POSTGRES
from tests.mutants.working import WORKING
from tests.mutants.worst_day import WORST_DAY

MUTANTS: Final[tuple[Mutant, ...]] = (
    *ASKING,
    *DECIDING,
    *STORING,
    *STORING_POSTGRES,
    *HOLDING,
    *KEEPING_POSTGRES,
    *SERVING,
    *RENEWING,
    *COUNTING,
    *CONFIGURING,
    *PUBLISHING,
    *WORKING,
    *WORST_DAY,
)
