//! The texts on which the fast engine has to give the reference's ids before it is used.
//!
//! Comes in: a definition, for the literals of its added tokens. Goes out: texts, short ones first, then all of them as one.
//! Holds: small enough to take a few milliseconds once the engines are warm; no text is as long as 64 KiB, from which on the
//! fast engine would cut it over several threads. Does not know: engines.

use super::definition::Definition;

/// What tokenizers disagree on: each line is a text. Texts that can't be written in a line are in [`made`].
const LINES: &str = include_str!("probe.txt");

/// At most this many added tokens are tried, spread evenly over the list: some files have thousands, all alike.
const ADDED_TOKENS_MAX: usize = 48;

/// The probe for `definition`.
pub(super) fn texts(definition: &Definition) -> Vec<String> {
    let mut texts: Vec<String> = LINES.lines().map(str::to_string).collect();
    texts.extend(made());
    texts.extend(literals(definition));
    let mut joined = String::new();
    for separator in ["\n", " ", ""] {
        joined.clear();
        for text in &texts {
            if joined.len() + text.len() > 60 * 1024 {
                break;
            }
            joined.push_str(text);
            joined.push_str(separator);
        }
        texts.push(joined.clone());
    }
    texts
}

/// Runs, and characters that an editor would spoil.
fn made() -> Vec<String> {
    let mut texts = vec![String::new()];
    for unit in [
        " ", "\t", "\n", "\r\n", "a", "A", "0", "7", "!", "-", "=", ".", "ab", "\u{a0}", "\u{3000}", "é", "的", " a",
        "\n ", "😀",
    ] {
        for count in [1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 100, 400] {
            texts.push(unit.repeat(count));
        }
        texts.push(format!("x{}y{}\n z", unit.repeat(3), unit.repeat(7)));
    }
    for space in [
        " ",
        "  ",
        "   ",
        "\t",
        "\n",
        "\n\n",
        " \n",
        "\n ",
        "\r",
        "\r\n",
        "\r\n\r\n",
        "\t\t ",
        " \u{a0} ",
        "\u{2028}",
        "\u{85}",
        "\u{b}\u{c}",
    ] {
        for (left, right) in
            [("a", "b"), ("a", ""), ("", "b"), ("1", "2"), (".", "!"), ("é", "的"), ("it", "'s"), ("!", "\n")]
        {
            texts.push(format!("{left}{space}{right}"));
        }
    }
    for code in (0..0x20).chain(0x7f..0xa1) {
        let character = char::from_u32(code).expect("below the surrogates");
        texts.push(format!("a{character}b {character} {character}{character}"));
    }
    for character in "\u{200b}\u{200c}\u{200d}\u{200e}\u{feff}\u{fffd}\u{fffe}\u{ffff}\u{e000}\u{f8ff}\u{10ffff}\u{1fffe}\u{fe0f}\u{ad}\u{2060}\u{34f}\u{180e}\u{61c}\u{202e}\u{2581}\u{0}".chars()
    {
        texts.push(format!("a{character}b {character} {character}{character}1{character}"));
    }
    // Composed and decomposed, stacked and out of order marks, characters that NFC takes apart.
    for text in [
        "\u{e9} e\u{301} \u{1e69} s\u{323}\u{307} s\u{307}\u{323} \u{212b} \u{c5} A\u{30a}",
        "a\u{315}\u{300}\u{5ae}\u{300} q\u{307}\u{323}\u{31b} \u{301}start \u{0958} \u{fb1d} \u{2126} \u{2adc}",
        "\u{1100}\u{1161}\u{11a8} \u{ac01} \u{ac00}\u{11a8} \u{f900} \u{1d15e} \u{fb01} \u{2460} \u{ff21}",
        "Z\u{351}\u{36b}\u{343}a\u{328}\u{36d}l\u{334}\u{356}g\u{332}o\u{321}\u{32b}",
        "ı İ ſ ẞ ß ǅ Σ ς σ K \u{212a} 'ſ 'ſt I'\u{17f}",
    ] {
        texts.push(text.into());
    }
    texts
}

/// The literals of added tokens in every surrounding that a `strip` flag, a normalizer or a pre-tokenizer could see.
fn literals(definition: &Definition) -> Vec<String> {
    let contents: Vec<&str> = definition.added_tokens().map(|token| token.content).collect();
    let step = contents.len().div_ceil(ADDED_TOKENS_MAX).max(1);
    let mut texts = Vec::new();
    let mut before = "";
    for content in contents.iter().step_by(step).chain(contents.last()) {
        texts.push(content.to_string());
        texts.push(format!("a{content}b {content} c  {content}  d\n{content}\n{content}{content} {before}{content}"));
        texts.push(format!(" {content}"));
        texts.push(format!("{content} "));
        texts.push(format!("é{content}é 1{content}2 \t{content}\t'{content}'s _{content}_"));
        let cut = content.char_indices().nth_back(0).map_or(0, |(at, _)| at);
        texts.push(format!("{}{content} x{} y", &content[..cut], &content[..cut]));
        texts.push(format!("{} {}", content.to_uppercase(), content.to_lowercase()));
        before = content;
    }
    texts
}
