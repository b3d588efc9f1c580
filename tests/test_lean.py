"""sidecar/lean.py: what a process that only serves does not carry."""

import ctypes
import json
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar import lean

ROOT = Path(__file__).resolve().parents[1]
IMPORTED = """
import json, ssl
from importlib import import_module
from sidecar import lean
load = ssl.SSLContext.set_default_verify_paths
with lean.without_system_authorities():
    import_module("sidecar.run")
import gc
held = [one.cert_store_stats()["x509"] for one in gc.get_objects() if isinstance(one, ssl.SSLContext)]
print(json.dumps([sum(held), ssl.SSLContext.set_default_verify_paths is load]))
"""


def test_the_serving_half_trusts_no_authority_of_the_system() -> None:
    """No TLS context that importing the serving half has made holds an authority, and later ones are as ever."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == [0, True]


def test_what_was_replaced_comes_back_after_an_error() -> None:
    """An import that fails leaves the standard library as it was."""
    load = ssl.SSLContext.set_default_verify_paths
    with pytest.raises(ImportError), lean.without_system_authorities():
        assert ssl.SSLContext.set_default_verify_paths is not load
        raise ImportError
    assert ssl.SSLContext.set_default_verify_paths is load


def test_one_heap_is_asked_for_where_there_is_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The C library is asked for a single arena; one that has no `mallopt` is left alone."""
    asked: list[tuple[int, int]] = []

    class Library:
        def __init__(self, _name: None) -> None:
            self.mallopt = lambda option, value: asked.append((option, value))

    monkeypatch.setattr(ctypes, "CDLL", Library)
    lean.keep_one_heap()
    assert asked == [(-8, 1)]
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    lean.keep_one_heap()
