"""Holds conversations through real tokenizers against `transformers` and `tokenizers`: ids and masks.

Goal: for each of hundreds of varied conversations the ids are those of `apply_chat_template` and the tokenizer, but for the literals of control tokens
that somebody wrote, which stay text; what is trained is what a pattern for the template says, and trl's marked template, where it gives the same text,
without the headers that check_templates.py lists. Method:
`tokenmill check --out` with the files that `check_ids.py` fetches and the templates beside them (or trl's, where there is none), on rows made here; the same in
Python: render, with placeholders for the literals; cut at the control tokens; encode the parts with offsets. JSON lines and Parquet, where
messages are lists of structs, give the same.

    python tests/oracle/check_chats.py --binary target/release/tokenmill
"""

import argparse
import copy
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers
import transformers.utils.chat_template_utils as utils

import check_ids
import check_templates

# tokenizer -> trl's template, of which there is a marked one.
CASES = {"llama3": "llama3", "qwen3": "qwen3", "deepseek_v3": "deepseekv3", "gemma3": "gemma3", "gptoss": "gptoss"}
# The assistant's turns in a rendered text, in which control tokens are the template's own: headers left out, ends included.
TURNS = {
    "llama3": r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n(.*?<\|eot_id\|>)",
    "qwen3": r"<\|im_start\|>assistant\n(.*?<\|im_end\|>\n)",
    "deepseek_v3": r"(?:<｜Assistant｜>|<｜tool▁outputs▁end｜>)(.*?<｜end▁of▁sentence｜>)",
    "gemma3": r"<start_of_turn>model\n(.*?<end_of_turn>\n)",
    "gptoss": r"<\|start\|>assistant(.*?<\|(?:end|return|call)\|>)",
}
ROWS = 240
# Rows whose ids and masks have to be compared, of each tokenizer.
LEAST = 200

WORDS = ("the a of tokens Tokenisierung über naïve 漢字 かな 한국어 русский العربية हिन्दी 12345 3.14 don't we'll ... -- -> == foo_bar() {x: 1} \"q\" <b> &amp; "
         "😀 👩‍👩‍👧 é ﬁ ½ \t  C:\\dir https://a.example/b?c=d#e").split(" ")
CONTROL = ["<|eot_id|>", "<|im_end|>", "<|im_start|>", "<｜User｜>", "<end_of_turn>", "<start_of_turn>", "<|end|>", "<|start|>", "<eos>", "<bos>"]
TOOLS = check_templates.TOOLS


def text(rng):
    kind = rng.randrange(8)
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 40)))
    if kind == 0:
        return words + rng.choice([" ", "\n", "  \n\n", "\t"])
    if kind == 1:
        return rng.choice([" ", "\n\n", "\t"]) + words
    if kind == 2:
        return "\n".join(" ".join(rng.choice(WORDS) for _ in range(5)) for _ in range(rng.randrange(2, 8)))
    if kind == 3:
        return "```python\ndef f(x):\n    return x  # " + words + "\n```"
    if kind == 4:
        # Decomposed letters, which some tokenizers compose.
        return words + " e\u0301 A\u030a o\u0308 한"
    return words


def conversation(rng, index):
    """A record, and whether it holds literals of control tokens."""
    messages, literals = [], False
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": text(rng)})
    turns = 50 if index % 60 == 7 else rng.randrange(1, 5)
    for _ in range(turns):
        messages += [{"role": "user", "content": text(rng)}, {"role": "assistant", "content": text(rng)}]
    if index % 12 == 3:
        messages[-1]["content"] = ""
    if index % 12 == 4:
        messages[-2]["content"] = ""
    if index % 6 == 5:
        literals = True
        message = messages[rng.randrange(len(messages))]
        message["content"] = f"{text(rng)}{rng.choice(CONTROL)}assistant\n{rng.choice(CONTROL)} {text(rng)}"
    record = {"messages": messages}
    if index % 10 == 9:
        record["tools"] = TOOLS
        messages[-1:-1] = [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "call00001", "function": {
            "name": "weather", "arguments": {"city": text(rng)}}}]}, {"role": "tool", "name": "weather", "content": text(rng)}]
    return record, literals


def render(template, record, tokens, marked=False):
    """The text and marked spans; None and the error where the template refuses."""
    try:
        texts, spans = utils.render_jinja_template(conversations=[record["messages"]], chat_template=template, tools=record.get("tools"),
                                                   return_assistant_tokens_mask=marked, **tokens)
    except Exception as error:  # Whatever the template raises.
        return None, str(error)
    return texts[0], spans[0] if marked else None


class Literals:
    """Placeholders for the literals of control tokens in a record, and back."""

    def __init__(self, control):
        self.find = re.compile("|".join(re.escape(literal) for literal in sorted(control, key=len, reverse=True)))
        self.kept = []

    def hide(self, value):
        if isinstance(value, str):
            return self.find.sub(self.one, value)
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        if isinstance(value, dict):
            return {key: self.hide(item) for key, item in value.items()}
        return value

    def one(self, match):
        self.kept.append(match[0])
        return chr(0xF0000 + len(self.kept) - 1)

    def back(self, part):
        """The text as it was written, and for each of its characters the index in `part`."""
        out, places = "", []
        for index, char in enumerate(part):
            whole = self.kept[ord(char) - 0xF0000] if 0xF0000 <= ord(char) < 0xF0000 + len(self.kept) else char
            out += whole
            places += [index] * len(whole)
        return out, places


def encode(tokenizer, control, literals, rendered):
    """Ids with their ranges of characters in the rendered text."""
    result, start = [], 0

    def ordinary(begin, end):
        part, places = literals.back(rendered[begin:end])
        encoding = tokenizer.encode(part, add_special_tokens=False)
        for token, (a, b) in zip(encoding.ids, encoding.offsets):
            result.append((token, begin + places[a] if a < len(places) else end, begin + places[b - 1] + 1 if b else begin))

    for match in literals.find.finditer(rendered):
        ordinary(start, match.start())
        result.append((control[match[0]], match.start(), match.end()))
        start = match.end()
    ordinary(start, len(rendered))
    return result


def found(binary, folder, name, template, tokens, path):
    config = folder / "config.json"
    config.write_text(json.dumps({"chat_template": template, **tokens}))
    (folder / "run.toml").write_text(
        f'lanes = 1\nblock_size = 4096\n[tokenizer]\npath = {json.dumps(str(name))}\nappend_eos = false\n[packing]\nstrategy = "best_fit"\n[errors]\nbad_record = "skip"\n'
        f'[[source]]\nname = "s"\npaths = [{json.dumps(str(path))}]\n[source.chat]\ntemplate = "config.json"\nnow = "{check_templates.NOW}"\n')
    out = folder / "out.jsonl"
    run = subprocess.run([binary, "check", folder / "run.toml", "--rows", str(ROWS), "--out", out], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"check_chats: {name}: tokenmill check failed: {run.stderr}")
    return [json.loads(line) for line in out.read_text().splitlines()]


def parquet(rows, path):
    """The rows with arguments as JSON in strings, since each tool has its own: as lists of structs, and as JSON lines."""
    rows = copy.deepcopy(rows)
    for row in rows:
        for message in row["messages"]:
            for call in message.get("tool_calls", []):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        row["tools"] = json.dumps(row["tools"]) if "tools" in row else None
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=50)
    lines = path.with_suffix(".strings.jsonl")
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return lines


def trained(span, spans):
    return any(begin < span[1] and span[0] < end for begin, end in spans)


def check(binary, name, trl, rows, folder, failures, verbose):
    files = check_ids.fetch(name)
    tokenizer = tokenizers.Tokenizer.from_file(str(files / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    control = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    config = json.loads((files / "tokenizer_config.json").read_text())
    template = config.get("chat_template") or (trl / f"{CASES[name]}.jinja").read_text()
    marked = (trl / f"{CASES[name]}_training.jinja").read_text()
    tokens = {}
    for key in ("bos_token", "eos_token", "pad_token"):
        value = config.get(key)
        value = value.get("content") if isinstance(value, dict) else value
        if value:
            tokens[key] = value
    headers = check_templates.HEADERS.get(CASES[name], set())
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row, _ in rows))
    got = found(binary, folder, files / "tokenizer.json", template, tokens, folder / "rows.jsonl")
    lines = parquet([row for row, _ in rows], folder / "rows.parquet")
    as_lines = found(binary, folder, files / "tokenizer.json", template, tokens, lines)
    as_columns = found(binary, folder, files / "tokenizer.json", template, tokens, folder / "rows.parquet")
    if as_lines != as_columns:
        index = next((i for i, (a, b) in enumerate(zip(as_lines, as_columns)) if a != b), min(len(as_lines), len(as_columns)))
        failures.append(f"{name}: Parquet differs from JSON lines at row {index}: {str(as_columns[index:index + 1])[:300]}, expected {str(as_lines[index:index + 1])[:300]}")
    counts = {"ids": 0, "literals": 0, "masks": 0, "marked": 0, "refused": 0, "unproved": 0}
    for index, ((row, has_literals), line) in enumerate(zip(rows, got)):
        literals = Literals(control)
        hidden = {"messages": literals.hide(row["messages"]), "tools": row.get("tools")}
        rendered, error = render(template, hidden, tokens)
        if rendered is None:
            counts["refused"] += 1
            if "error" not in line:
                failures.append(f"{name}, row {index}: rendered, expected an error: {error}")
            continue
        if "error" in line:
            if "can't be proved" in line["error"]:
                counts["unproved"] += 1
            else:
                failures.append(f"{name}, row {index}: {line['error']}")
            continue
        encoded = encode(tokenizer, control, literals, rendered)
        if [token for token, _, _ in encoded] != line["input_ids"]:
            failures.append(f"{name}, row {index}: other ids")
            continue
        if not literals.kept:
            tokenizer.encode_special_tokens = False
            whole = tokenizer.encode(rendered, add_special_tokens=False).ids
            tokenizer.encode_special_tokens = True
            if whole != line["input_ids"]:
                failures.append(f"{name}, row {index}: other ids than those of the whole text")
                continue
        counts["ids"] += 1
        counts["literals"] += bool(literals.kept)
        cut = [match.span(1) for match in re.finditer(TURNS[name], rendered, re.DOTALL)]
        same, spans = render(marked, hidden, tokens, marked=True)
        if same == rendered:
            by_marks = []
            for begin, end in spans:
                header = next((header for header in headers if rendered.startswith(header, begin, end)), "")
                by_marks.append((begin + len(header), end))
            if by_marks != cut:
                failures.append(f"{name}, row {index}: the pattern finds {cut}, trl's marks {by_marks}")
                continue
            counts["marked"] += 1
        want = [token if trained((a, b), cut) else -100 for token, a, b in encoded]
        if want != line["labels"]:
            at = next(i for i, (a, b) in enumerate(zip(want, line["labels"])) if a != b)
            around = [(tokenizer.decode([token], skip_special_tokens=False), label != -100, w != -100)
                      for (token, _, _), label, w in list(zip(encoded, line["labels"], want))[max(at - 3, 0):at + 3]]
            failures.append(f"{name}, row {index}: another mask at {at}: {around}")
            continue
        counts["masks"] += 1
    print(f"check_chats: {name}: {counts}", flush=True)
    if min(counts["ids"], counts["masks"]) < LEAST:
        failures.append(f"{name}: too few rows were compared")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--only")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    check_templates.stop_the_clock()
    trl = check_templates.templates_folder()
    rng = random.Random(20260131)
    rows = [conversation(rng, index) for index in range(ROWS)]
    failures = []
    for name in CASES:
        if arguments.only and name != arguments.only:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            check(arguments.binary, name, trl, rows, pathlib.Path(scratch), failures, arguments.verbose)
    for failure in failures[: None if arguments.verbose else 30]:
        print("  " + failure, file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
