"""The exception that all failures of a run are."""

from __future__ import annotations


class Error(Exception):
    """What stopped a run, or what is wrong with a config or a state.

    Attributes:
        kind: What happened, to match on: ``"config"``, ``"not_found"``, ``"read"``, ``"corrupt"``, ``"bad_record"``,
            ``"tokenizer"``, ``"state_mismatch"``, ``"too_few_records"``, ``"limit"``, ``"stall"``, ``"write"``,
            ``"interrupted"`` or ``"internal"``.
        shard: Path of the shard in which it happened, or None.
        record: Index of the record in the shard, from 0, or None.
        byte: Offset of the record in the uncompressed shard, or None.
    """

    kind: str
    shard: str | None
    record: int | None
    byte: int | None

    def __init__(
        self,
        message: str,
        kind: str,
        shard: str | None = None,
        record: int | None = None,
        byte: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.shard = shard
        self.record = record
        self.byte = byte

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.kind, self.shard, self.record, self.byte)
