"""Holds chat templates and masks against `transformers`, on the templates and marks that the package trl ships.

Goal: the text of each conversation is that of `apply_chat_template`, byte for byte, or both refuse it; what is trained is what
`{% generation %}` marks, where a template has it. For the templates that trl has both marked and unmarked, spans found without the
marks may be missing (an error), but where the two templates give the same text they are those of the marks, without the headers that `HEADERS`
lists. Method: `tokenmill check --out` with a tokenizer made here: a token a byte, and a control token for each literal that looks like one in the
template.

    python tests/oracle/check_templates.py --binary target/release/tokenmill
"""

import argparse
import datetime
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import transformers.utils.chat_template_utils as utils

NOW = "2026-01-31"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

# What some marked templates have trained in front of what the assistant says, which unmarked ones don't show to be the assistant's.
HEADERS = {
    "deepseek_r1_distill": {"<｜Assistant｜>"},
    "deepseekv3": {"<｜Assistant｜>"},
    "gptoss": {"<|start|>assistant"},
    "muse_glimmer": {"<|start|>assistant"},
    "qwen2_5": {"\n"},
    # The generation prompt has it.
    "qwen3_5_nothink": {"<think>\n\n</think>\n\n"},
    **dict.fromkeys(("qwen3_5_think", "qwen3_6", "qwen3_8"), {"<think>\n"}),
}

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Says the weather — très <bien> & \"so\".", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "a city"}, "days": {"type": "integer", "default": 1}}, "required": ["city"]}}}]


def conversations():
    user, assistant, system = (lambda text, role=role: {"role": role, "content": text} for role in ("user", "assistant", "system"))
    yield [user("Hello"), assistant("Hi there!")]
    yield [system("Be brief."), user("Hello"), assistant("Hi."), user("And?"), assistant("No more.")]
    yield [user("line one\nline two\n\n"), assistant("  spaces around  \n"), user("\ttab"), assistant("done\n")]
    yield [user("emoji 😀 ünïcode 漢字"), assistant("👩‍👩‍👧 ok"), user("<b>&amp;</b> \"quoted\" 'single' \\back"), assistant("<p>x</p>")]
    yield [user(""), assistant("x"), user("y"), assistant("")]
    yield [user("a"), assistant("<think>\nreason\n</think>\n\nanswer"), user("b"), assistant("<think>more</think>last")]
    yield [message for turn in range(50) for message in (user(f"question {turn}"), assistant(f"answer {turn}"))]
    yield [user("What is the weather?"), {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "id": "call00001", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "f": 1.5, "n": None, "b": True}}}]},
        {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "sunny"}, assistant("It is sunny.")]
    yield [user("only a question")]


def records():
    for messages in conversations():
        yield {"messages": messages}
        if any("tool_calls" in message for message in messages) or len(messages) == 2:
            yield {"messages": messages, "tools": TOOLS}


def expected(source, record):
    """The text and the marked spans, or the error."""
    try:
        texts, spans = utils.render_jinja_template(
            conversations=[record["messages"]], chat_template=source, tools=record.get("tools"),
            return_assistant_tokens_mask="{% generation" in source or "{%- generation" in source, **TOKENS)
    except Exception as error:  # Whatever the template raises.
        return None, str(error)
    return texts[0], (spans[0] if spans else None)


def found(binary, folder, source, rows):
    """What `tokenmill check` gives for each record: (text, trained bytes) or an error."""
    (folder / "config.json").write_text(json.dumps({"chat_template": source, **TOKENS}))
    control = control_tokens(source)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(source)))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.toml").write_text(
        'lanes = 1\n[tokenizer]\npath = "tokenizer.json"\nappend_eos = false\n[packing]\nstrategy = "best_fit"\n[errors]\nbad_record = "skip"\n'
        '[[source]]\nname = "s"\npaths = ["rows.jsonl"]\n[source.chat]\ntemplate = "config.json"\n' f'now = "{NOW}"\n')
    out = folder / "out.jsonl"
    run = subprocess.run([binary, "check", folder / "run.toml", "--out", out], capture_output=True, text=True)
    if run.returncode != 0:
        return [(None, run.stderr.strip())] * len(rows)
    result = []
    for line in out.read_text().splitlines():
        line = json.loads(line)
        if "error" in line:
            result.append((None, line["error"]))
            continue
        text, trained = b"", []
        for token, label in zip(line["input_ids"], line["labels"]):
            piece = bytes([token]) if token < 256 else control[token - 256].encode()
            trained += [label != -100] * len(piece)
            text += piece
        result.append((text.decode(), trained))
    return result


def marked_bytes(text, spans):
    trained = []
    for at, char in enumerate(text):
        trained += [any(start <= at < end for start, end in spans)] * len(char.encode())
    return trained


def control_tokens(source):
    """The literals in a template's source that models of its family have as special tokens."""
    found = set(re.findall(r"<\|[^|<>{}\s]+\|>|<｜[^｜<>{}]+｜>|<\|[A-Z_]+_TOKEN\|>|</?s>|<(?:start|end)_of_turn>|<end_of_utterance>|<turn\|>|<\|turn>", source))
    return sorted(found | set(TOKENS.values()))


def byte_letters():
    """The letter that stands for each byte in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return {byte: chr(byte if byte in plain else next(others)) for byte in range(256)}


def tokenizer(source):
    """A tokenizer.json of 256 bytes and the control tokens."""
    letters = byte_letters()
    added = [{"id": 256 + index, "content": literal, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
             for index, literal in enumerate(control_tokens(source))]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            "model": {"type": "BPE", "vocab": {letters[byte]: byte for byte in range(256)}, "merges": []}}


def stretches(trained):
    result, begin = [], None
    for at, flag in enumerate([*trained, False]):
        if flag and begin is None:
            begin = at
        elif not flag and begin is not None:
            result.append((begin, at))
            begin = None
    return result


def left_out(text, found, marked):
    """What of the marked stretches isn't trained: the heads of them, or None if it is something else."""
    text, heads, left = text.encode(), set(), list(found)
    for begin, end in stretches(marked):
        part = left[begin:end]
        if True not in part or part != sorted(part):
            return None
        heads.add(text[begin:begin + part.index(True)].decode())
        left[begin:end] = [False] * (end - begin)
    return None if any(left) else heads - {""}


def stop_the_clock():
    """Has templates see the time NOW."""

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromisoformat(NOW)

    if hasattr(utils, "datetime"):
        utils.datetime = Clock
    else:
        datetime.datetime = Clock


def templates_folder():
    """Where trl keeps its chat templates."""
    return pathlib.Path(importlib.util.find_spec("trl").submodule_search_locations[0]) / "chat_templates"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()

    stop_the_clock()
    folder = templates_folder()
    templates = {path.stem: path.read_text() for path in sorted(folder.glob("*.jinja"))}
    rows = list(records())
    texts, masks, refused, unproved, failures = 0, 0, 0, 0, []
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, source in templates.items():
            results[name] = found(arguments.binary, pathlib.Path(scratch), source, rows)
    for name, source in templates.items():
        for index, (row, (text, trained)) in enumerate(zip(rows, results[name])):
            want, spans = expected(source, row)
            if want is None:
                refused += 1
                if text is not None:
                    failures.append(f"{name}, record {index}: rendered, expected an error: {spans}")
                continue
            if text is None:
                if "can't be proved" in trained:
                    unproved += 1
                    if arguments.verbose:
                        print("unproved", name, index, trained)
                else:
                    failures.append(f"{name}, record {index}: {trained}")
                continue
            if text != want:
                at = next((i for i, (a, b) in enumerate(zip(text, want)) if a != b), min(len(text), len(want)))
                failures.append(f"{name}, record {index}: text differs at {at}: {text[at - 20:at + 40]!r}, expected {want[at - 20:at + 40]!r}")
                continue
            texts += 1
            if spans is None and f"{name}_training" in templates:
                marked, spans = expected(templates[f"{name}_training"], row)
                spans = spans if marked == want else None
            if spans is None:
                continue
            heads = left_out(want, trained, marked_bytes(want, spans))
            allowed = HEADERS.get(name, set()) if f"{name}_training" in templates else set()
            if heads is None or not heads <= allowed:
                failures.append(f"{name}, record {index}: another mask, {heads}")
                if arguments.verbose:
                    print(name, index, repr(want), spans, "".join("^" if t else "." for t in trained))
            else:
                masks += 1
    print(f"check_templates: {len(templates)} templates, {len(rows)} records: {texts} texts and {masks} masks are equal, {refused} refused by both, "
          f"{unproved} without provable spans, {len(failures)} failures")
    for failure in failures[: None if arguments.verbose else 40]:
        print("  " + failure, file=sys.stderr)
    sys.exit(1 if failures or texts == 0 else 0)


if __name__ == "__main__":
    main()
