//! Records of conversations through the built-in template: no panic on anything, and of what is taken the tokens are those of the text
//! that `render` shows, with masks that lie in it.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};
use tokenmill::chat::{Chat, ChatOptions, Clock, Input, TrainOn};
use tokenmill::error::ErrorKind;
use tokenmill::tokenizer::{Tokenizer, TokenizerOptions};

const TRAIN_ON: [TrainOn; 4] = [TrainOn::Assistant, TrainOn::LastAssistant, TrainOn::Completion, TrainOn::All];
const INPUT: [Input; 6] =
    [Input::Auto, Input::Messages, Input::Sharegpt, Input::Alpaca, Input::Completion, Input::Text];

/// The tokenizer, and a chat for each way to train and to read.
static CHATS: LazyLock<(Tokenizer, Vec<Chat>)> = LazyLock::new(|| {
    let options = TokenizerOptions { path: "bytes".into(), ..TokenizerOptions::default() };
    let tokenizer = Tokenizer::load(&options).expect("it is built in");
    let mut chats = Vec::new();
    for train_on in TRAIN_ON {
        for input in INPUT {
            for expand_turns in [false, true] {
                let chat =
                    ChatOptions { template: "chatml".into(), train_on, input, expand_turns, ..ChatOptions::default() };
                let source = chat.find_template(Path::new("."), &options).expect("it is built in");
                let clock = Clock::parse("2026-01-31").expect("a day");
                chats.push(Chat::new(chat, &source, &tokenizer, clock).expect("it is sound"));
            }
        }
    }
    (tokenizer, chats)
});

fuzz_target!(|data: &[u8]| {
    let Some((&first, line)) = data.split_first() else { return };
    let Ok(record) = serde_json::from_slice::<Map<String, Value>>(line) else { return };
    let (tokenizer, chats) = &*CHATS;
    let chat = &chats[usize::from(first) % chats.len()];
    let rows = match chat.encode(tokenizer, &record) {
        Ok(rows) => rows,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::BadRecord, "{error}");
            return;
        }
    };
    for row in &rows {
        let mut end = None;
        for range in &row.untrained {
            assert!(end.is_none_or(|end| end < range.start) && range.start < range.end, "{:?}", row.untrained);
            end = Some(range.end);
        }
        assert!(end.is_none_or(|end| end as usize <= row.ids.len()), "{:?} of {} tokens", row.untrained, row.ids.len());
        assert_eq!(row.labels().iter().filter(|&&label| label != -100).count(), row.trained());
    }
    if let [row] = &rows[..]
        && !chat.options().expand_turns
        && chat.options().input == Input::Auto
    {
        let text = chat.render_record(&record, false).expect("it was rendered");
        let decoded = tokenizer.decode(&row.ids);
        // What isn't a conversation ends with EOS, as documents do.
        assert!(decoded == text || decoded.strip_suffix("<eos>") == Some(&text), "{decoded:?}, expected {text:?}");
        assert_eq!(row.text_bytes as usize, text.len());
    }
});
