"""Folders for tests that make many store files: in memory where there is room, for a disk's sync is not under test."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = "/dev/shm"


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """Give an empty folder that is gone after the test; on a disk where memory may not be written."""
    if not os.access(_MEMORY, os.W_OK):
        yield tmp_path
        return
    folder = tempfile.mkdtemp(prefix="secret-sidecar-", dir=_MEMORY)
    yield Path(folder)
    shutil.rmtree(folder)
