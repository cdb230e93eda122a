//! Text of unknown origin on a terminal: control characters as marks, lines broken at a width, colours that can be off.
//!
//! A corpus holds terminal escapes, and characters that turn the direction of what follows. None of them gets out raw.

use std::fmt::Write;

/// How a piece of text is shown; the numbers are those of the terminal's SGR sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    Bold,
    Dim,
    /// Text of every second document.
    Other,
    /// The bar beside the text, of the first document and of every second one.
    Bar,
    OtherBar,
    Special,
    /// A special token that isn't trained.
    DimSpecial,
    Control,
}

impl Style {
    fn codes(self) -> &'static str {
        match self {
            Style::Plain => "",
            Style::Bold => "1",
            Style::Dim => "2",
            Style::Other => "36",
            Style::Bar => "33",
            Style::OtherBar => "1;36",
            Style::Special => "1;30;43",
            Style::DimSpecial => "2;33",
            Style::Control => "31",
        }
    }
}

/// Appends `text` in a style, where colours are on.
pub fn paint(out: &mut String, color: bool, style: Style, text: &str) {
    if color && style != Style::Plain && !text.is_empty() {
        let _ = write!(out, "\x1b[{}m{text}\x1b[0m", style.codes());
    } else {
        out.push_str(text);
    }
}

/// What stands for a character that must not reach a terminal as it is; `None` for all others.
///
/// Line feeds are for the caller, who breaks the line there.
pub fn mark(c: char) -> Option<String> {
    match c {
        '\t' => Some("⇥   ".into()),
        '\u{7f}' => Some("␡".into()),
        // The pictures of the control characters: ␀ ␁ ... ␛.
        c if (c as u32) < 0x20 => char::from_u32(0x2400 + c as u32).map(String::from),
        // C1 controls, marks and overrides of direction, line separators, what has no width at all.
        '\u{80}'..='\u{9f}'
        | '\u{ad}'
        | '\u{61c}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}' => Some(format!("\\u{{{:x}}}", c as u32)),
        _ => None,
    }
}

/// A name or other short text, on one line, safe to print.
pub fn safe(text: &str) -> String {
    text.chars().map(|c| mark(c).unwrap_or_else(|| c.into())).collect()
}

/// Columns of a character on a terminal.
fn columns(c: char) -> usize {
    match c as u32 {
        0x300..=0x36f | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f
        | 0x2e80..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1faff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// Writes lines that each start with a bar.
pub struct Lines<'a> {
    pub out: &'a mut String,
    pub color: bool,
    /// Columns at which a line is broken; 0 for never.
    pub width: usize,
    pub bar: (Style, &'static str),
    /// Columns used in the open line; none is open at 0.
    column: usize,
}

impl<'a> Lines<'a> {
    pub fn new(out: &'a mut String, color: bool, width: usize, bar: (Style, &'static str)) -> Self {
        Lines { out, color, width, bar, column: 0 }
    }

    /// Appends text; its line feeds are kept, its control characters become marks.
    pub fn text(&mut self, style: Style, text: &str) {
        let mut plain = String::new();
        for c in text.chars() {
            if c == '\n' {
                self.flush(style, &mut plain);
                self.open();
                self.end();
                continue;
            }
            let (mark, used) = match mark(c) {
                Some(mark) => {
                    let used = mark.chars().count();
                    (Some(mark), used)
                }
                None => (None, columns(c)),
            };
            if self.width > 0 && self.column > 0 && self.column + used > self.width {
                self.flush(style, &mut plain);
                self.end();
            }
            if self.column == 0 {
                self.open();
            }
            self.column += used;
            match mark {
                Some(mark) => {
                    self.flush(style, &mut plain);
                    paint(self.out, self.color, Style::Control, &mark);
                }
                None => plain.push(c),
            }
        }
        self.flush(style, &mut plain);
    }

    fn flush(&mut self, style: Style, plain: &mut String) {
        paint(self.out, self.color, style, plain);
        plain.clear();
    }

    fn open(&mut self) {
        if self.column == 0 {
            paint(self.out, self.color, self.bar.0, self.bar.1);
            self.column = self.bar.1.chars().count();
        }
    }

    /// Ends the open line, if there is one.
    pub fn end(&mut self) {
        if self.column > 0 {
            self.out.push('\n');
            self.column = 0;
        }
    }
}

/// The beginning and the end of a text, and the number of characters between that are left out.
pub fn shorten(text: &str, most: usize) -> (&str, usize, &str) {
    let all = text.chars().count();
    if most == 0 || all <= most {
        return (text, 0, "");
    }
    let byte = |chars: usize| text.char_indices().nth(chars).map_or(text.len(), |(byte, _)| byte);
    let last = most / 3;
    (&text[..byte(most - last)], all - most, &text[byte(all - last)..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What must not reach a terminal, and what may.
    #[test]
    fn control_characters_become_marks() {
        let check = |text: &str, expected: &str| assert_eq!(safe(text), expected, "{text:?}");
        check("plain, é 漢 🙂", "plain, é 漢 🙂");
        check("\x1b[31mred\x07", "␛[31mred␇");
        check("a\tb\r\n\0\x7f", "a⇥   b␍␊␀␡");
        check("\u{9b}31m \u{202e}abc\u{2066}", "\\u{9b}31m \\u{202e}abc\\u{2066}");
        check("\u{feff}\u{200b}", "\\u{feff}\\u{200b}");
        for c in (0..=0x10ffff).filter_map(char::from_u32).filter(|c| c.is_control()) {
            assert!(mark(c).is_some_and(|mark| !mark.chars().any(char::is_control)), "{c:?}");
        }
    }

    /// Each line has its bar; wide characters count twice; empty lines stay.
    #[test]
    fn lines_are_broken_at_the_width() {
        let show = |text: &str, width| {
            let mut out = String::new();
            let mut lines = Lines::new(&mut out, false, width, (Style::Bar, "| "));
            lines.text(Style::Plain, text);
            lines.end();
            out
        };
        assert_eq!(show("abcdef", 5), "| abc\n| def\n");
        assert_eq!(show("漢字x", 6), "| 漢字\n| x\n");
        assert_eq!(show("a\n\nb", 0), "| a\n| \n| b\n");
    }

    #[test]
    fn long_texts_keep_both_ends() {
        assert_eq!(shorten("abcdefghi", 6), ("abcd", 3, "hi"));
        assert_eq!(shorten("äöü", 3), ("äöü", 0, ""));
        assert_eq!(shorten("äöüß", 3), ("äö", 1, "ß"));
        assert_eq!(shorten("abc", 0), ("abc", 0, ""));
    }
}
