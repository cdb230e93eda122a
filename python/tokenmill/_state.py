"""States: a checkpoint's parts under keys of their own.

``{"header": …, "lane_00017": …}``: the header says what the run is, and is the same on all ranks; each lane that a rank owns has
a key that no other rank has. So whoever saves the states of all ranks by key (``torch.distributed.checkpoint`` does)
saves each lane once, and any number of ranks reads just the lanes that it owns then. Values are JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ._error import Error

HEADER = "header"
_LANE = "lane_"

State = dict[str, str]


def lane_key(lane: int) -> str:
    """The key of a lane."""
    return f"{_LANE}{lane:05}"


def split(checkpoint: bytes) -> State:
    """A checkpoint's bytes as a state."""
    whole: dict[str, Any] = json.loads(checkpoint)
    cursors = whole.pop("cursors")
    # What differs between ranks has no place in what all have alike.
    whole["rank"] = 0
    state = {HEADER: json.dumps(whole)}
    for cursor in cursors:
        state[lane_key(cursor["lane"])] = json.dumps(cursor)
    return state


def header_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The header, parsed."""
    if not isinstance(state, Mapping) or HEADER not in state:
        found = sorted(map(str, state))[:4] if isinstance(state, Mapping) else type(state).__name__
        raise Error(f"state mismatch: not a state of tokenmill: found {found}, expected a mapping with {HEADER!r}", "state_mismatch")
    try:
        header = json.loads(state[HEADER])
    except (TypeError, ValueError) as error:
        raise Error(f"state mismatch: the state's header isn't JSON: {error}", "state_mismatch") from None
    if not isinstance(header, dict):
        raise Error("state mismatch: the state's header isn't an object", "state_mismatch")
    return header


def join(state: Mapping[str, Any], needed: Iterable[int]) -> bytes:
    """A state as a checkpoint's bytes, of all lanes that it has; those ``needed`` have to be among them."""
    whole = header_of(state)
    keys = sorted(key for key in state if key.startswith(_LANE))
    missing = [key for key in map(lane_key, needed) if key not in state]
    if missing:
        shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise Error(
            f"state mismatch: the state lacks {shown}; found {len(keys)} lanes of {whole.get('lanes')}, expected those of "
            "this rank: give the states of all ranks, see merge_states",
            "state_mismatch",
        )
    try:
        whole["cursors"] = [json.loads(state[key]) for key in keys]
    except (TypeError, ValueError) as error:
        raise Error(f"state mismatch: a lane of the state isn't JSON: {error}", "state_mismatch") from None
    return json.dumps(whole).encode()


def merge_states(states: Iterable[Mapping[str, Any]]) -> State:
    """The state of several ranks or workers as one, from which any number of ranks goes on.

    Args:
        states: What ``state_dict()`` gave on each, at the same step.

    Raises:
        Error: They are of different runs or steps, or a lane is in two of them.
    """
    merged: State = {}
    first: dict[str, Any] | None = None
    for number, state in enumerate(states):
        header = header_of(state)
        if first is None:
            first = header
            merged[HEADER] = state[HEADER]
        for key in sorted(first.keys() | header.keys()):
            if key in ("mixture", "batch_size"):
                continue
            if first.get(key) != header.get(key):
                raise Error(
                    f"state mismatch: state {number} is of another run or moment than state 0: {key}: found "
                    f"{json.dumps(header.get(key))[:200]}, expected {json.dumps(first.get(key))[:200]}",
                    "state_mismatch",
                )
        for key, value in state.items():
            if key == HEADER:
                continue
            if key in merged:
                raise Error(f"state mismatch: {key} is in state {number} and in one before, expected it once", "state_mismatch")
            merged[key] = value
    if first is None:
        raise Error("state mismatch: no state was given, expected at least one", "state_mismatch")
    return merged
