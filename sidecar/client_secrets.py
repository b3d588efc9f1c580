"""The values of one fetch, as read-only views that end with it (contract 3, wiping)."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import Self

from provider.memory import Buffer
from sidecar.client_offer import Offer


class Secrets(Mapping[str, memoryview]):
    """The offer's environment: variable name -> read-only view of its value, in plan order.

    `by_ref` has the same views by the text of their ref; `bundle` is the view of the environment bundle, None where the
    offer has none. A context manager: leaving zeroes the memory, and every view raises ValueError from then on. Whoever
    makes `bytes` or `str` of a view makes a copy that nobody wipes.
    """

    __slots__ = ("_buffer", "_named", "_views", "bundle", "by_ref")

    def __init__(self, offer: Offer, buffer: Buffer, views: tuple[memoryview, ...]) -> None:
        """Own `buffer` and the views into it, in the order of `read_answer`."""
        command = offer.command
        self._buffer = buffer
        self._views = views
        refs = {ref.text: view for ref, view in zip(command.secret_refs, views, strict=False)}
        self.by_ref: Mapping[str, memoryview] = MappingProxyType(refs)
        self._named = {name: refs[ref.text] for name, ref in offer.environment}
        self.bundle: memoryview | None = views[-1] if command.bundle_refs else None

    def __getitem__(self, name: str) -> memoryview:
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def wipe(self) -> None:
        """Overwrite every value with zeros and end every view. Idempotent."""
        # Zeros first: nothing that could go wrong with a view may come before them. The memory is given back last: it
        # may serve another fetch only when no view reaches it.
        self._buffer.wipe()
        for view in self._views:
            # A view that C code holds at this moment cannot be ended; it shows zeros.
            with suppress(BufferError):
                view.release()
        self._buffer.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wipe()

    def __repr__(self) -> str:
        return f"<Secrets of {len(self._views)}>"

    def __reduce__(self) -> str:
        raise TypeError("Secrets are never serialised")
