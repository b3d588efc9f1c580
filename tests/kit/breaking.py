"""Ways to break an answer, for Hypothesis to choose from."""

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.kit.scripted import Step


@dataclass(frozen=True)
class Break:
    """How to break an answer: cut it at a place, or change the byte there; near the head and the edges, or anywhere."""

    place: float
    edge: bool
    offset: int
    change: int
    """What the byte is exclusive-ored with; 0 cuts."""
    then: str

    def of(self, whole: bytes) -> Step:
        """Return the broken answer."""
        edges = [at for at, byte in enumerate(whole) if byte in b'"{}[],\r\n']
        at = (
            edges[int(self.place * (len(edges) - 1))] + self.offset if self.edge else int(self.place * (len(whole) - 1))
        )
        at = max(0, min(len(whole) - 1, at))
        if not self.change:
            return Step(whole[:at], self.then)
        changed = bytearray(whole)
        changed[at] ^= self.change
        return Step(bytes(changed), "close")


BREAKS = st.builds(
    Break,
    place=st.floats(0, 1),
    edge=st.booleans(),
    offset=st.integers(-2, 2),
    change=st.just(0) | st.integers(1, 255),
    then=st.sampled_from(["close", "reset"]),
)
