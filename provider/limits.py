"""Every number of the contract that is not configurable, each with its reason.

Defaults and bounds of the configurable ones stand in `sidecar/config.py`, which is the only reader of the
environment. Units are in the name: `_BYTES`, `_MS`, `_S`; counts have none.
"""

from typing import Final

# --- contract 1: SecretRef -------------------------------------------------------------------------------------
REF_BYTES: Final = 512
"""The whole text of a SecretRef; bounds what is hashed and kept for each ref."""
REF_PART_BYTES: Final = 128
"""UTF-8 bytes of `projectId` and of `name`; QL3's column width."""
VERSION_MAX: Final = 2_147_483_647
"""Largest version and generation: a signed 32-bit integer, as QL3's columns are."""

# --- contract 2: request ---------------------------------------------------------------------------------------
TARGET_BYTES: Final = 8192
"""Request target; our routes need about 250, the rest is room for an honest 404."""
HEADER_BLOCK_BYTES: Final = 16_384
"""Request line and headers with their line ends; aiohttp bounds single fields only, never the block."""
HEADER_COUNT: Final = 64
"""Header fields of a request."""
BODY_BYTES: Final = 65_536
"""Request body: 64 refs of 512 bytes and the fences fit with room."""
JSON_DEPTH: Final = 4
"""Arrays and objects open at once, the outermost counted: the command needs two."""
SECRET_REFS: Final = 64
"""Refs of a request, and of a plan."""
BUNDLE_REFS: Final = 1
"""Environment bundle refs of an `@v2` request."""
ATTEMPT_ID_CHARACTERS: Final = 36
"""`runId` and `attemptId`: the width of QL3's id columns."""
NAME_CHARACTERS: Final = 128
"""`offerId`, `projectId`, `taskId` in characters; `taskRevision` in bytes."""

# --- contract 3: answer ----------------------------------------------------------------------------------------
VALUE_BYTES: Final = 16_384
"""One secret value. Never widened, not even for a bundle's neighbour."""
BATCH_BYTES: Final = 65_536
"""All secret values of a delivery, raw."""
BUNDLE_BYTES: Final = 98_304
"""The one environment bundle of an `@v2` delivery, beside the batch."""
RESPONSE_BYTES_V1: Final = 131_072
"""Response body of `@v1`, after escaping."""
RESPONSE_BYTES_V2: Final = 262_144
"""Response body of `@v2`, after escaping."""

# --- contract 4: phases of a connection ------------------------------------------------------------------------
HANDSHAKE_S: Final = 10.0
"""TLS handshake; two round trips need far less, a stalled one holds a descriptor."""
HEADERS_S: Final = 10.0
"""Headers complete after the handshake or, for a later request, after its first byte."""
BODY_S: Final = 5.0
"""Body complete after its audit row was written."""
IDLE_S: Final = 5.0
"""First byte of a next request after the last answer."""
RESPONSE_S: Final = 10.0
"""Our answer taken by the peer."""
DISCARD_BYTES: Final = 65_536
"""What still arrives after an early answer and is thrown away, so that the answer is not lost to a reset."""
DISCARD_S: Final = 1.0
"""How long such an arrival is waited for."""
SHUTDOWN_S: Final = 1.0
"""How long the peer's own end is waited for after ours; TLS 1.3 does not ask for it."""
REQUESTS_PER_CONNECTION: Final = 100
"""Bounds how long one handshake's judgement is relied on."""
HANDSHAKING_SHARE: Final = 4
"""At most one in this many places of each connection limit may be before the end of the handshake."""

# --- contract 6: authority -------------------------------------------------------------------------------------
PLACES_WAIT_S: Final = 2.0
"""Waiting in memory for the places before BEGIN, all together."""
WRITE_LOCK_WAIT_S: Final = 2.5
"""SQLite: every wait for the write lock; longer than one hold with hanging material (2 s)."""
MATERIAL_S: Final = 2.0
"""Reading material while the attempt's lock is held."""

# --- contract 7: mounted files ---------------------------------------------------------------------------------
ROOT_PATH_BYTES: Final = 4096
"""PATH_MAX, the terminating NUL not counted by the contract."""
LINK_DEPTH: Final = 8
"""Links resolved by the walk that stands in for `openat2`."""
STUCK_THREADS: Final = 16
"""Reader threads stuck on earlier mounts; the next one ends the process."""
