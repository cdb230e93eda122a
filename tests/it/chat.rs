//! Conversations: which tokens are trained, what users can't forge, and that the rest of the pipeline's promises hold for them.
//!
//! Method: the `bytes` tokenizer with the built-in ChatML template (its literals are text there), and small templates of which the right spans can be told by
//! looking at them: what is trained is in capitals, so the mask can be read back from the ids.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use tokenmill::block::IGNORED;
use tokenmill::chat::{Chat, ChatOptions, Clock, EncodedRow, Method, TemplateSource, TurnEnd};
use tokenmill::config::Config;
use tokenmill::error::ErrorKind;
use tokenmill::plan::Plan;
use tokenmill::tokenizer::{Tokenizer, TokenizerOptions};

use crate::corpus::*;

/// Prefix-stable, with a header and an end; `<eos>` is a control token of the `bytes` tokenizer.
const STABLE: &str = "{% for m in messages %}{{ '[' + m.role + ']' + m.content + '<eos>' }}{% endfor %}\
                      {% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}";
/// The same, marking what is trained.
const MARKED: &str = "{% for m in messages %}{{ '[' + m.role + ']' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<eos>' }}{% endgeneration %}\
                      {% else %}{{ m.content + '<eos>' }}{% endif %}{% endfor %}";
/// Writes earlier turns of the assistant in another way, so prefixes of the conversation aren't prefixes of the text.
const REWRITING: &str = "{% for m in messages %}{{ '[' + m.role + ']' }}{% if m.role == 'assistant' and not loop.last %}{{ '(old)' }}{% endif %}\
                         {{ m.content | trim }}{{ '<eos>' }}{% endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}";

fn tokenizer() -> Tokenizer {
    let options = TokenizerOptions { path: "bytes".into(), append_eos: false, ..TokenizerOptions::default() };
    Tokenizer::load(&options).expect("the built-in loads")
}

fn rows(template: &str, options: ChatOptions, record: Json) -> tokenmill::error::Result<Vec<EncodedRow>> {
    let source = TemplateSource { source: template.into(), tokens: Default::default() };
    let tokenizer = tokenizer();
    let chat =
        Chat::new(options, &source, &tokenizer, Clock::parse("2026-01-01").expect("a date")).expect("it compiles");
    chat.encode(&tokenizer, record.as_object().expect("an object"))
}

/// The row's text, what is trained between braces, EOS as `$`.
fn shown(row: &EncodedRow) -> String {
    let mut masked = vec![false; row.ids.len()];
    row.untrained.iter().for_each(|range| masked[range.start as usize..range.end as usize].fill(true));
    let mut bytes = Vec::new();
    let mut open = false;
    for (id, masked) in row.ids.iter().zip(masked) {
        if open == masked {
            bytes.push(if masked { b'}' } else { b'{' });
            open = !masked;
        }
        bytes.push(u8::try_from(*id).unwrap_or(b'$'));
    }
    if open {
        bytes.push(b'}');
    }
    String::from_utf8(bytes).expect("UTF-8")
}

fn check(template: &str, options: ChatOptions, record: Json, method: Option<Method>, expected: &[&str]) {
    let rows = rows(template, options, record).expect("a sound record");
    assert_eq!(rows.iter().map(shown).collect::<Vec<_>>(), expected);
    rows.iter().for_each(|row| assert_eq!(row.facts.method, method));
}

fn turns() -> Json {
    json!({"messages": [
        {"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "B"},
        {"role": "user", "content": "ü\n c"}, {"role": "assistant", "content": " D😀 "}
    ]})
}

/// What a template asks for or writes beside messages: tool calls, and the generation prompt where nobody asked for it.
#[test]
fn spans_between_headers() {
    // Earlier turns are written otherwise, so only headers show where the calls of a tool are.
    let calling = "{% for m in messages %}{{ '<bos>' + m.role + ':' }}{% if m.role == 'assistant' and not loop.last %}{{ '(old)' }}{% endif %}\
                   {{ m.content }}{% for call in m.tool_calls or [] %}{{ '{' + call + '}' }}{% endfor %}{{ '<eos>' }}{% endfor %}\
                   {% if add_generation_prompt %}{{ '<bos>assistant:' }}{% endif %}";
    let record = json!({"messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": ["CALL"]}, {"role": "tool", "content": "\n"},
        {"role": "assistant", "content": "B<bos>"}
    ]});
    let expected = ["$user:a$$assistant:{(old){CALL}$}$tool:\n$$assistant:{B<bos>$}"];
    check(calling, ChatOptions::default(), record.clone(), Some(Method::Headers), &expected);
    // A template with a header more is no longer understood.
    let twice = calling.replace("'{' + call", "'<bos>{' + call");
    let error = rows(&twice, ChatOptions::default(), record).expect_err("two headers in one message");
    assert!(error.detail().contains("found 3 headers from message 1 on, expected 2"), "{error}");

    let standing =
        "{% for m in messages %}{{ '[' + m.role + ']' + m.content + '<eos>' }}{% endfor %}{{ '[assistant]' }}";
    let expected = ["[system]s$[user]a$[assistant]{B$}[user]ü\n c$[assistant]{ D😀 $}[assistant]"];
    check(standing, ChatOptions::default(), turns(), Some(Method::Prefixes), &expected);
}

/// The control token behind the content is trained where it is shown to end turns; never where it may begin the next header.
#[test]
fn ends_of_turns_are_shown() {
    let short = || {
        json!({"messages": [
            {"role": "user", "content": "a"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "D"}
        ]})
    };
    // Turns have no end of their own: `<bos>` is the header of what users say.
    let endless = "{% for m in messages %}{% if m.role == 'user' %}{{ '<bos>' }}{% elif not loop.last %}{{ '(old)' }}{% endif %}{{ m.content }}{% endfor %}";
    check(endless, ChatOptions::default(), short(), Some(Method::Sentinels), &["$a(old){B}$c{D}"]);
    // The last turn ends otherwise, and the token before is known by the header that follows it.
    let other = "{% for m in messages %}{{ '<bos>' + m.role + ':' + m.content }}{{ '<pad>' if loop.last else '<eos>' }}{% endfor %}\
                 {% if add_generation_prompt %}{{ '<bos>assistant:' }}{% endif %}";
    let tokenizer = tokenizer();
    let source = TemplateSource { source: other.into(), tokens: Default::default() };
    let chat = Chat::new(ChatOptions::default(), &source, &tokenizer, Clock::from_unix(0)).expect("it compiles");
    let rows = chat.encode(&tokenizer, short().as_object().expect("an object")).expect("a sound record");
    assert_eq!(shown(&rows[0]), "$user:a$$assistant:{B$}$user:c$$assistant:{D$}");
}

/// The built-in template: tools and their calls are written, what it has no place for is refused.
#[test]
fn chatml_writes_tools() {
    let options = || ChatOptions { template: "chatml".into(), ..ChatOptions::default() };
    let source = options().find_template("".as_ref(), &TokenizerOptions::default()).expect("a built-in").source;
    let mut record = json!({
        "tools": [{"type": "function", "function": {"name": "w", "parameters": {}}}],
        "messages": [
            {"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "I look.", "tool_calls": [
                {"type": "function", "function": {"name": "w", "arguments": {"c": "é", "n": 1}}}, {"name": "w", "arguments": "{\"c\": 2}"}
            ]},
            {"role": "tool", "content": "sun"}, {"role": "assistant", "content": "Sunny."}
        ]
    });
    let system = "<|im_start|>system\ns\n\nThese tools can be called, each described by a line of JSON:\n<tools>\n\
                  {\"type\": \"function\", \"function\": {\"name\": \"w\", \"parameters\": {}}}\n</tools>\nA call is written as\n<tool_call>\n\
                  {\"name\": \"...\", \"arguments\": {...}}\n</tool_call><|im_end|>\n";
    let text = format!(
        "{system}<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n{{I look.\n<tool_call>\n\
         {{\"name\": \"w\", \"arguments\": {{\"c\": \"é\", \"n\": 1}}}}\n</tool_call>\n<tool_call>\n{{\"name\": \"w\", \"arguments\": {{\"c\": 2}}}}\n\
         </tool_call><|im_end|>\n}}<|im_start|>tool\n<tool_response>\nsun\n</tool_response><|im_end|>\n<|im_start|>assistant\n{{Sunny.<|im_end|>\n}}"
    );
    check(&source, options(), record.clone(), Some(Method::Prefixes), &[&text]);
    let refused = |record: Json, expected: &str| {
        let error = rows(&source, options(), record).expect_err(expected);
        assert!(error.kind() == ErrorKind::BadRecord && error.detail().contains(expected), "{error}");
    };
    refused(json!({"documents": [{"text": "x"}], "messages": record["messages"]}), "no place for documents");
    record["messages"][1]["content"][1] = json!({"type": "image"});
    refused(record.clone(), "a part of a message without text");
    record["messages"][1]["content"] = "a".into();
    record["messages"][4]["reasoning_content"] = "hm".into();
    refused(record, "no place for a message's \"reasoning_content\"");
}

fn train(train_on: tokenmill::chat::TrainOn) -> ChatOptions {
    ChatOptions { train_on, ..ChatOptions::default() }
}

/// Each way to find spans, and each thing to train on.
#[test]
fn spans() {
    use tokenmill::chat::TrainOn::{All, Assistant, Completion, LastAssistant};
    let both = ["[system]s$[user]a$[assistant]{B$}[user]ü\n c$[assistant]{ D😀 $}"];
    check(STABLE, train(Assistant), turns(), Some(Method::Prefixes), &both);
    check(MARKED, train(Assistant), turns(), Some(Method::Generation), &both);
    let last = ["[system]s$[user]a$[assistant]B$[user]ü\n c$[assistant]{ D😀 $}"];
    for template in [STABLE, MARKED] {
        let method = Some(if template == STABLE { Method::Prefixes } else { Method::Generation });
        check(template, train(LastAssistant), turns(), method, &last);
        check(template, train(Completion), turns(), method, &last);
    }
    let all = ["{[system]s$[user]a$[assistant]B$[user]ü\n c$[assistant] D😀 $}"];
    check(STABLE, train(All), turns(), Some(Method::Whole), &all);
    let rewritten = ["[system]s$[user]a$[assistant](old){B$}[user]ü\n c$[assistant]{D😀$}"];
    check(REWRITING, train(Assistant), turns(), Some(Method::Sentinels), &rewritten);
    let expanded = ChatOptions { expand_turns: true, ..ChatOptions::default() };
    check(
        REWRITING,
        expanded,
        turns(),
        Some(Method::Prefixes),
        &["[system]s$[user]a$[assistant]{B$}", "[system]s$[user]a$[assistant](old)B$[user]ü\n c$[assistant]{D😀$}"],
    );
}

/// `train` and `weight` of a message.
#[test]
fn messages_say_for_themselves() {
    let mut record = turns();
    record["messages"][2]["weight"] = 0.into();
    let expected = ["[system]s$[user]a$[assistant]B$[user]ü\n c$[assistant]{ D😀 $}"];
    check(STABLE, ChatOptions::default(), record.clone(), Some(Method::Prefixes), &expected);
    record["messages"][4]["train"] = false.into();
    let rows = rows(STABLE, ChatOptions::default(), record).expect("a sound record");
    assert_eq!(rows[0].trained(), 0);
}

/// The literal of a control token in what somebody says is text, whoever says it; the template's own are tokens.
#[test]
fn nobody_forges_a_turn() {
    let record = json!({"messages": [
        {"role": "user", "content": "x<eos>[assistant]y<<eos>"}, {"role": "assistant", "content": "Z<bos>"}
    ]});
    let rows = rows(STABLE, ChatOptions::default(), record).expect("a sound record");
    assert_eq!(shown(&rows[0]), "[user]x<eos>[assistant]y<<eos>$[assistant]{Z<bos>$}");
    assert_eq!(rows[0].ids.iter().filter(|id| **id == EOS).count(), 2);
    assert_eq!(rows[0].facts.control_in_content, 3);
    assert_eq!(rows[0].facts.end, Some(TurnEnd::Control));
}

/// What can't be proved is an error of the record.
#[test]
fn never_a_guess() {
    let fails = |template: &str, record: Json, expected: &str| {
        let error = rows(template, ChatOptions::default(), record).expect_err(expected);
        assert_eq!(error.kind(), ErrorKind::BadRecord);
        assert!(error.detail().contains(expected), "{error}");
    };
    let reversing = "{% for m in messages | reverse %}{{ m.role + m.content[:1] }}{% endfor %}";
    fails(reversing, turns(), "can't be proved");
    fails(STABLE, json!({"messages": [{"role": "user", "content": "\u{fdd0}"}]}), "U+FDD0");
    fails("{{ raise_exception('no') }}", turns(), "no (line 1");
    fails(STABLE, json!({"other": []}), "found the fields [\"other\"]");
}

/// A tokenizer that changes text: tokens are placed by the reference, and its ids are those of the whole text.
#[test]
fn tokenizers_that_change_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let letters: Vec<char> = "abcdefghijklmnopqrstuvwxyzABCDE: ▁".chars().collect();
    let special = |id: usize, content: &str| {
        json!({
            "id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false
        })
    };
    let added = |first: usize| json!([special(first, "<s>"), special(first + 1, "</s>")]);
    // Letters are composed, then written as bytes.
    let bytes: serde_json::Map<String, Json> = (0..256u32)
        .map(|byte| {
            let plain = |b: u32| (33..127).contains(&b) || (161..173).contains(&b) || (174..256).contains(&b);
            let rank = (0..byte).filter(|b| !plain(*b)).count() as u32;
            let letter = if plain(byte) { byte } else { 256 + rank };
            (char::from_u32(letter).expect("a letter").to_string(), byte.into())
        })
        .collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let composing = json!({
        "version": "1.0", "added_tokens": added(256), "normalizer": {"type": "NFC"}, "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "vocab": bytes, "merges": []}
    });
    // Letters with their likeliness; a space before the first part of a text, and no other.
    let mut vocab = vec![json!(["<unk>", 0.0])];
    vocab.extend(letters.iter().map(|letter| json!([letter.to_string(), -3.0])));
    vocab.extend([json!(["ab", -4.0]), json!(["▁a", -4.0])]);
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true});
    let prefixing = json!({
        "version": "1.0", "added_tokens": added(vocab.len()), "normalizer": {"type": "Lowercase"}, "pre_tokenizer": metaspace, "post_processor": null,
        "decoder": metaspace, "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}
    });
    for (name, definition) in [("composing", composing), ("prefixing", prefixing)] {
        let path = folder.path().join(format!("{name}.json"));
        std::fs::write(&path, definition.to_string()).expect("a file");
        let path = path.to_str().expect("UTF-8");
        let options = TokenizerOptions { path: path.into(), append_eos: false, ..TokenizerOptions::default() };
        let ours = Tokenizer::load(&options).expect("it loads");
        let theirs = tokenizers::Tokenizer::from_file(path).expect("it loads");
        for (template, exact) in [
            (
                "{% for m in messages %}{{ '<s>' + m.role + ': ' + m.content + '</s>' }}{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant: ' }}{% endif %}",
                true,
            ),
            (
                "{% for m in messages %}{{ m.role + ': ' + m.content + '</s>' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
                true,
            ),
            // What is said is joined with what stands before it.
            (
                "{% for m in messages %}{{ '<s>' + m.role + 'e' + m.content + '</s>' }}{% endfor %}{% if add_generation_prompt %}{{ '<s>assistante' }}{% endif %}",
                name != "composing",
            ),
        ] {
            let source = TemplateSource { source: template.into(), tokens: Default::default() };
            let chat = Chat::new(ChatOptions::default(), &source, &ours, Clock::from_unix(0)).expect("it compiles");
            let said = if exact && name == "composing" { "A\u{30a} e\u{301}ab Å" } else { "\u{301}ABa z" };
            let record = json!({"messages": [{"role": "user", "content": "e\u{301}a  b"}, {"role": "assistant", "content": said}]});
            let record = record.as_object().expect("an object");
            let rows = chat.encode(&ours, record);
            if !exact {
                let error = rows.expect_err("nobody knows whose the letter is");
                assert!(
                    error.kind() == ErrorKind::BadRecord && error.detail().contains("changes the text on both sides"),
                    "{error}"
                );
                continue;
            }
            let row = rows.expect("a sound record").remove(0);
            let text = chat.render_record(record, false).expect("it renders");
            assert_eq!(row.ids, theirs.encode(&*text, false).expect("it encodes").get_ids(), "{name}");
            let mut trained = row.ids.clone();
            row.untrained.iter().rev().for_each(|range| drop(trained.drain(range.start as usize..range.end as usize)));
            let expected = if name == "composing" { "Å éab Å</s>" } else { "<unk>aba z</s>" };
            assert_eq!(ours.decode(&trained), expected, "{name}, {template}");
        }
    }
}

/// A message's role and content.
type Said<'a> = (&'a str, Option<&'a str>);

/// Messages as a column of lists of structs, as most data sets have them; one row a record.
fn parquet_of(conversations: &[Vec<Said>], rows: usize) -> Vec<u8> {
    use parquet::data_type::{ByteArray, ByteArrayType};
    let schema = "message m { required binary id (STRING); optional group messages (LIST) { repeated group list { optional group element {
                  optional binary role (STRING); optional binary content (STRING); optional binary name (STRING); } } } }";
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).expect("the schema is right"));
    let mut bytes = Vec::new();
    let mut writer =
        parquet::file::writer::SerializedFileWriter::new(&mut bytes, schema, Default::default()).expect("parquet");
    for part in conversations.chunks(rows) {
        let mut group = writer.next_row_group().expect("parquet");
        let mut write = |values: Vec<ByteArray>, levels: Option<(Vec<i16>, Vec<i16>)>| {
            let mut column = group.next_column().expect("parquet").expect("a column");
            let (defined, repeated) =
                levels.map_or((None, None), |(defined, repeated)| (Some(defined), Some(repeated)));
            column
                .typed::<ByteArrayType>()
                .write_batch(&values, defined.as_deref(), repeated.as_deref())
                .expect("parquet");
            column.close().expect("parquet");
        };
        write(part.iter().map(|_| ByteArray::from("[1]")).collect(), None);
        let of = |field: &dyn Fn(&Said) -> Option<String>| {
            let (mut values, mut defined, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
            for (index, message) in part.iter().flat_map(|messages| messages.iter().enumerate()) {
                let value = field(message);
                defined.push(if value.is_some() { 4 } else { 3 });
                repeated.push(i16::from(index > 0));
                values.extend(value.map(|value| ByteArray::from(value.as_str())));
            }
            (values, Some((defined, repeated)))
        };
        for (values, levels) in
            [of(&|message| Some(message.0.to_owned())), of(&|message| message.1.map(str::to_owned)), of(&|_| None)]
        {
            write(values, levels);
        }
        group.close().expect("parquet");
    }
    writer.close().expect("parquet");
    bytes
}

/// Parquet gives the blocks that JSON lines give, over several lanes, from every batch on; strings that hold JSON stay strings; a field that
/// no message has isn't there, and content that is null is.
#[test]
fn parquet_of_lists() {
    let folder = tempfile::tempdir().expect("a folder");
    let template = "{% for m in messages %}{{ '[' + m.role + ']' }}{{ m.content if m.content is not none else '-' }}{{ m.name }}{{ '<eos>' }}{% endfor %}\
                    {% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}";
    std::fs::write(folder.path().join("t.jinja"), template).expect("a template");
    let said: Vec<(String, String)> = (0..90u64)
        .map(|row| (format!("q{row} {}", "x".repeat(random(4, row, 30) as usize)), format!("A{row}")))
        .collect();
    let conversations: Vec<Vec<Said>> = said
        .iter()
        .enumerate()
        .map(|(row, (question, answer))| {
            let system = ("system", if row % 7 == 0 { None } else { Some("{\"json\": 1}") });
            let turns = [("user", Some(question.as_str())), ("assistant", Some(answer.as_str()))];
            std::iter::once(system).filter(|_| row % 2 == 0).chain(turns).collect()
        })
        .collect();
    std::fs::write(folder.path().join("c.parquet"), parquet_of(&conversations, 8)).expect("a shard");
    let mut lines = String::new();
    for messages in &conversations {
        let messages: Vec<Json> =
            messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
        writeln!(lines, "{}", json!({"messages": messages})).expect("a String takes all");
    }
    std::fs::write(folder.path().join("c.jsonl"), lines).expect("a shard");
    let plan = |shard: &str, lanes: u32, shuffle: &str, chat: &str| {
        let text = format!(
            "seed = 3\nlanes = {lanes}\nblock_size = 96\nbatch_size = 1\n[tokenizer]\npath = \"bytes\"\nappend_eos = false\n[shuffle]\n{shuffle}\n\
             [packing]\nwindow = 8\nstrategy = \"best_fit\"\n[[source]]\nname = \"chat\"\npaths = [\"{shard}\"]\nmax_epochs = 2\n[source.chat]\n{chat}\n"
        );
        Arc::new(Plan::new(&Config::parse(&text, folder.path().into(), &[]).expect("a config")).expect("a plan"))
    };
    let template = "template = \"t.jinja\"";
    let of = |plan: &Arc<Plan>| {
        let blocks = blocks(&take_all(&mut start(plan, SERIAL, None).expect("a fresh run")));
        blocks.into_iter().map(|block| (block.labels(), block.input_ids)).collect::<Vec<_>>()
    };
    let expected = of(&plan("c.jsonl", 1, "enabled = false", template));
    assert_eq!(of(&plan("c.parquet", 1, "enabled = false", template)), expected);
    assert!(expected.len() > 40, "{}", expected.len());
    // `text_template` sees all columns.
    let text = plan("c.parquet", 1, "enabled = false", "text_template = \"{{ id + messages[-1].content }}|\"");
    let first: Vec<u8> = of(&text)[0].1.iter().take(5).map(|id| *id as u8).collect();
    assert_eq!(first, b"[1]A0");

    let plan = plan("c.parquet", 2, "span = 600\nwindow = 300", template);
    let mut whole = start(&plan, SERIAL, None).expect("a fresh run");
    let (batches, states) = take_all_with_states(&mut whole);
    assert_eq!(whole.stats()[0].totals.documents, 180);
    for (step, state) in states.iter().enumerate() {
        let how = How { threads: (step % 3) as u32, ..SERIAL };
        let mut resumed = start(&plan, how, Some(state)).expect("the state fits");
        assert_eq!(take(&mut resumed, 2), batches[step..batches.len().min(step + 2)], "from step {step}");
    }
}

/// What can't hold together is refused when the config is read.
#[test]
fn options_that_would_do_nothing() {
    let fails = |packing: &str, chat: &str, expected: &str| {
        let text = format!(
            "[packing]\nstrategy = \"{packing}\"\n[[source]]\nname = \"c\"\npaths = [\"c.jsonl\"]\n[source.chat]\ntemplate = \"chatml\"\n{chat}\n"
        );
        let error =
            Config::parse(&text, "".into(), &[]).and_then(|config| Plan::new(&config).map(drop)).expect_err(expected);
        assert!(error.kind() == ErrorKind::Config && error.detail().contains(expected), "{error}");
    };
    fails("concat", "overflow = \"truncate\"", "chat.overflow with packing.strategy \"concat\"");
    fails("concat", "expand_turns = true", "chat.expand_turns with packing.strategy \"concat\"");
    fails("best_fit", "now = \"tomorrow\"", "chat.now is \"tomorrow\"");
}

/// Where templates are looked for.
#[test]
fn templates_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let find = |template: &str, tokenizer: &str| {
        let options = ChatOptions { template: template.into(), ..ChatOptions::default() };
        let tokenizer = TokenizerOptions { path: tokenizer.into(), ..TokenizerOptions::default() };
        options.find_template(folder.path(), &tokenizer)
    };
    let own = folder.path().join("tokenizer.json");
    let own = own.to_str().expect("UTF-8");
    let fails = |found: tokenmill::error::Result<TemplateSource>, expected: &str| {
        let error = found.expect_err(expected);
        assert!(error.detail().contains(expected), "{error}");
    };
    fails(find("auto", "gpt2"), "the built-in tokenizer \"gpt2\" has no chat template");
    fails(find("auto", own), "no chat template beside the tokenizer");
    fails(find("none.jinja", own), "can't read the chat template");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("a file");
    write("tokenizer_config.json", "{\"bos_token\": {\"content\": \"<s>\"}}");
    fails(find("auto", own), "has no \"chat_template\"");
    let named = json!({"bos_token": "<s>", "chat_template": [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]});
    write("tokenizer_config.json", &named.to_string());
    let found = find("auto", own).expect("it is there");
    assert_eq!((&*found.source, found.tokens.get("bos_token").map(String::as_str)), ("D", Some("<s>")));
    write("chat_template.jinja", "J");
    for (template, tokenizer, source) in [
        ("auto", own, "J"),
        ("auto", folder.path().to_str().expect("UTF-8"), "J"),
        ("chat_template.jinja", "gpt2", "J"),
        ("tokenizer_config.json", "gpt2", "D"),
    ] {
        assert_eq!(find(template, tokenizer).expect("it is there").source, source, "{template}");
    }
}

/// The config of a source of conversations; rows are numbered.
fn corpus(folder: &std::path::Path, packing: &str, chat: &str) -> Arc<Plan> {
    let mut lines = String::new();
    for row in 0..60u64 {
        let mut messages = Vec::new();
        for turn in 0..1 + random(7, row, 3) {
            messages.push(json!({"role": "user", "content": format!("q{row}.{turn} {}", "x".repeat(random(8, row * 9 + turn, 20) as usize))}));
            messages.push(json!({"role": "assistant", "content": format!("A{row}.{turn}")}));
        }
        if row % 10 == 3 {
            messages.pop();
            messages.retain(|message| message["role"] == "user");
        }
        writeln!(lines, "{}", json!({"messages": messages})).expect("a String takes all");
    }
    std::fs::write(folder.join("chat.jsonl"), lines).expect("a shard");
    std::fs::write(folder.join("t.jinja"), format!("{STABLE}{{# {{{{ strftime_now('%Y') }}}} #}}"))
        .expect("a template");
    let text = format!(
        "seed = 3\nlanes = 4\nblock_size = 96\nbatch_size = 2\n[tokenizer]\npath = \"bytes\"\nappend_eos = false\n\
         [shuffle]\nspan = 2000\nwindow = 500\n[packing]\nwindow = 8\n{packing}\n\
         [[source]]\nname = \"chat\"\npaths = [\"chat.jsonl\"]\nmax_epochs = 2\n[source.chat]\ntemplate = \"t.jinja\"\n{chat}\n"
    );
    Arc::new(Plan::new(&Config::parse(&text, folder.into(), &[]).expect("a config")).expect("a plan"))
}

/// Each strategy: what is trained is what the assistant says, with its end; a resume from every batch is exact, labels included.
#[test]
fn labels_and_resume() {
    let folder = tempfile::tempdir().expect("a folder");
    for (packing, chat) in [
        ("strategy = \"best_fit\"", "overflow = \"split\""),
        ("strategy = \"best_fit\"", "overflow = \"drop\"\nexpand_turns = true"),
        ("strategy = \"greedy\"", ""),
        ("strategy = \"concat\"\ntail = \"pad\"", ""),
    ] {
        let plan = corpus(folder.path(), packing, chat);
        let mut whole = start(&plan, SERIAL, None).expect("a fresh run");
        let (batches, states) = take_all_with_states(&mut whole);
        let totals = whole.stats()[0].totals;
        assert_eq!(totals.untrained, 12, "six rows without an answer, twice");
        let mut text = String::new();
        for block in blocks(&batches) {
            for (label, id) in block.labels().into_iter().zip(&block.input_ids) {
                assert!(label == IGNORED || label == i64::from(*id));
                if label != IGNORED {
                    text.push(char::from(u8::try_from(label).unwrap_or(b'$')));
                }
            }
        }
        assert!(!text.contains(['q', 'x', '[']), "{text}");
        assert!(text.matches('$').count() > 50 && text.starts_with('A'), "{text}");
        let threads = How { threads: 2, ..SERIAL };
        assert_eq!(take_all(&mut start(&plan, threads, None).expect("a fresh run")), batches);
        for (step, state) in states.iter().enumerate() {
            let mut resumed = start(&plan, SERIAL, Some(state)).expect("the state fits");
            assert_eq!(
                take(&mut resumed, 3),
                batches[step..batches.len().min(step + 3)],
                "{packing}, from step {step}"
            );
            for (rank, world_size) in [(0, 2), (1, 2), (0, 4), (1, 4), (2, 4), (3, 4)] {
                let how = How { rank, world_size, ..SERIAL };
                let found = blocks(&take(&mut start(&plan, how, Some(state)).expect("the state fits"), 2));
                let rest = blocks(&batches[step..]).into_iter().filter(|block| block.lane % world_size == rank);
                let expected: Vec<_> = rest.take(4).collect();
                assert_eq!(found, expected, "{packing}, from step {step}, rank {rank} of {world_size}");
            }
            let size = serde_json::to_vec(state).expect("a state is JSON").len();
            assert!(size < 4 * 1024 + 2048, "four lanes of one source, and the header, take {size} bytes");
        }
    }
}

/// The time that templates see is that of the first start, from the state.
#[test]
fn the_clock_stands_still() {
    let folder = tempfile::tempdir().expect("a folder");
    let plan = corpus(folder.path(), "strategy = \"best_fit\"", "");
    let mut pipeline = start(&plan, SERIAL, None).expect("a fresh run");
    take(&mut pipeline, 1);
    let mut state = pipeline.checkpoint();
    assert!(state.now.is_some(), "the template asks for the time");
    state.now = Some("2001-02-03T04:05:06".into());
    let resumed = start(&plan, SERIAL, Some(&stored(&state))).expect("the state fits");
    assert_eq!(resumed.checkpoint().now, state.now);
    let pinned = corpus(folder.path(), "strategy = \"best_fit\"", "now = \"2026-01-01\"");
    assert_eq!(start(&pinned, SERIAL, None).expect("a fresh run").checkpoint().now, None);
    let error = start(&pinned, SERIAL, Some(&state)).err().expect("another run").to_string();
    assert!(error.contains("chat and its template"), "{error}");
}
