"""What every test shares: Hypothesis profiles, and the reason printed when a test cannot run here."""

import os

import hypothesis
import pytest

# A loaded two-core machine is slow now and then: time is no property of the code under test, so no deadline.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
# A change is judged by itself, not by luck: the same examples every time. New ones are looked for by soak runs.
hypothesis.settings.register_profile("ci", hypothesis.settings.get_profile("default"), derandomize=True, database=None)
hypothesis.settings.register_profile("soak", hypothesis.settings.get_profile("default"), max_examples=5000)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked root, saying why, when they were asked for by an ordinary user."""
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root: run `make test-root` as root"))
