"""Wiping, seen from outside: the memory of the whole process after every way out (contract 3)."""

from pathlib import Path

from tests.kit.memscan import run_inside


def test_no_value_is_left_in_the_process_whatever_way_a_request_ends(tmp_path: Path) -> None:
    """After each way out no needle of any value is in memory, and the scan of the same run finds both leaky twins."""
    tmp_path.chmod(0o755)
    found = run_inside("tests.residue", str(tmp_path))
    assert len(found["ways"]) == 11
    assert not any(found["ways"].values()), found["ways"]
    assert len(found["twins"]) == 6
    assert all(found["twins"].values()), found["twins"]


def test_no_value_is_left_of_a_request_that_was_caught_with_values_in_memory(tmp_path: Path) -> None:
    """While a provider waits, values are in memory; whatever ends the request then, no needle is there afterwards."""
    tmp_path.chmod(0o755)
    found = run_inside("tests.residue_suspended", str(tmp_path))
    assert len(found) == 10
    assert all(held for held, _ in found.values()), found
    assert not any(left for _, left in found.values()), found
