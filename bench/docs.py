"""`python -m bench.docs`: every plot and every table of figures anew from bench/results."""

import sys

from bench import plots
from tests.tools import docgen


def main() -> int:
    """Draw the plots, then write the tables of all documents."""
    plots.main()
    return docgen.main()


if __name__ == "__main__":
    sys.exit(main())
