//! `tokenmill inspect`: the next blocks as text with their documents, or a checkpoint in readable form.
//!
//! ```text
//! block 32  lane 0  source web  2,048 tokens, 2 documents
//!  1 continues at token 311, 1,200 tokens  web/003.jsonl.zst, window 7 from byte 14680064, document 41
//! | ... and that was the end.⟦<|endoftext|>⟧
//!  2 848 tokens, goes on after this block  web/003.jsonl.zst, window 7 from byte 14680064, document 42
//! | Another one begins
//! ```

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

use tokenmill::block::{Block, IGNORED, Segment};
use tokenmill::config::Config;
use tokenmill::error::{Error, ErrorKind, Result};
use tokenmill::pipeline::{Pipeline, RunOptions};
use tokenmill::plan::Plan;
use tokenmill::tokenizer::Tokenizer;

use crate::args::{Color, InspectArguments};
use crate::places::{Places, remote};
use crate::run::with_environment;
use crate::table::count;
use crate::visible::{Lines, Style, paint, safe, shorten};

/// Characters of a document that a terminal shows.
const CHARS: usize = 600;

pub fn inspect(arguments: &InspectArguments) -> Result<()> {
    if remote(&arguments.path).is_some() || is_checkpoint(&arguments.path)? {
        // Of a config only `[storage]` counts here, as `--set` says it.
        let rest = "[[source]]\nname = \"none\"\npaths = [\"none\"]\n";
        let config = with_environment(Config::parse(rest, "".into(), &arguments.overrides)?);
        return crate::inspect_state::inspect(&arguments.path, &Places::new(&config));
    }
    let config = with_environment(Config::load(&arguments.path, &arguments.overrides)?);
    let mut plan = Plan::new(&config)?;
    // Blocks one by one, so an error comes after all blocks before it.
    plan.config.batch_size = 1;
    let plan = Arc::new(plan);
    let tokenizer = Arc::new(Tokenizer::load(&config.tokenizer_options())?);
    let from = arguments.resume.as_deref().map(|path| Places::new(&config).load(path)).transpose()?;
    let options = RunOptions { serial: true, ..RunOptions::default() };
    let mut pipeline = Pipeline::new(plan.clone(), tokenizer.clone(), options, from.as_ref())?;
    let view = View::new(arguments, &plan, &tokenizer);
    let mut shown = 0;
    while shown < arguments.blocks {
        let Some(batch) = pipeline.next_batch()? else {
            return crate::print_stdout(&format!("the run ends after {shown} blocks\n"));
        };
        for block in &batch.blocks {
            crate::print_stdout(&view.block(block))?;
            shown += 1;
        }
    }
    Ok(())
}

/// Whether `path` is a folder or a JSON object, rather than a config.
fn is_checkpoint(path: &Path) -> Result<bool> {
    use std::io::Read;
    let fail = |error: std::io::Error| {
        let kind = if error.kind() == std::io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Read };
        Error::new(kind, format!("can't read {}", path.display())).because(error)
    };
    if std::fs::metadata(path).map_err(fail)?.is_dir() {
        return Ok(true);
    }
    let mut start = Vec::new();
    std::fs::File::open(path).map_err(fail)?.take(4096).read_to_end(&mut start).map_err(fail)?;
    Ok(start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{'))
}

/// Columns of the terminal at standard output; 0 where it doesn't tell.
#[cfg(unix)]
fn terminal_columns() -> usize {
    // SAFETY: the call fills the struct it is given, which is plain numbers; what it gives back on failure isn't read.
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        (libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) == 0).then_some(size)
    };
    size.map_or(0, |size| usize::from(size.ws_col))
}

/// Columns of the terminal at standard output; 0 where it doesn't tell.
#[cfg(not(unix))]
fn terminal_columns() -> usize {
    0
}

/// How blocks are shown.
struct View<'a> {
    plan: &'a Plan,
    tokenizer: &'a Tokenizer,
    special: Vec<u32>,
    color: bool,
    chars: usize,
    width: usize,
}

impl<'a> View<'a> {
    fn new(arguments: &InspectArguments, plan: &'a Plan, tokenizer: &'a Tokenizer) -> Self {
        let terminal = std::io::stdout().is_terminal();
        let color = match arguments.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
                terminal && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
            }
        };
        let mut special = tokenizer.special_ids();
        special.extend(tokenizer.eos().into_iter().chain(tokenizer.bos()));
        special.sort_unstable();
        View {
            plan,
            tokenizer,
            special,
            color,
            chars: arguments.chars.unwrap_or(if terminal { CHARS } else { 0 }),
            width: arguments.width.unwrap_or_else(|| if terminal { terminal_columns() } else { 0 }),
        }
    }

    fn block(&self, block: &Block) -> String {
        let mut out = String::new();
        let source = &self.plan.sources[block.source as usize];
        let padding = block.input_ids.len() - block.tokens();
        let title = format!("block {}", block.index);
        paint(&mut out, self.color, Style::Bold, &title);
        let documents = block.segments.len();
        let labels = block.labels();
        let chat = source.options.chat.is_some();
        let trained = labels.iter().filter(|label| **label != IGNORED).count();
        out += &format!(
            "  lane {}  source {}  {} tokens, {} document{}{}{}\n",
            block.lane,
            safe(source.name()),
            count(block.input_ids.len() as u64),
            documents,
            if documents == 1 { "" } else { "s" },
            if chat { format!(", {} trained", count(trained as u64)) } else { String::new() },
            if padding > 0 { format!(", {padding} of padding") } else { String::new() }
        );
        for (number, (range, segment)) in block.segment_ranges().enumerate() {
            let last = range.end == block.input_ids.len();
            let ids = &block.input_ids[range.clone()];
            let masked = |at: usize| labels[range.start + at] == IGNORED;
            self.segment_head(&mut out, block, number, segment, ids, last);
            let (text, bar) = match number % 2 {
                0 => (Style::Plain, Style::Bar),
                _ => (Style::Other, Style::OtherBar),
            };
            let mut lines = Lines::new(&mut out, self.color, self.width, (bar, if self.color { "▎ " } else { "| " }));
            if chat {
                self.masked_segment(&mut lines, text, ids, &masked);
            } else {
                self.segment(&mut lines, (text, Style::Special), ids);
            }
            lines.end();
        }
        if padding > 0 {
            paint(&mut out, self.color, Style::Dim, &format!("    {padding} tokens of padding"));
            out.push('\n');
        }
        out.push('\n');
        out
    }

    /// The line above a document's text: its number in the block, how much of it is here, where it comes from.
    fn segment_head(&self, out: &mut String, block: &Block, number: usize, segment: &Segment, ids: &[u32], last: bool) {
        let style = if number.is_multiple_of(2) { Style::Bar } else { Style::OtherBar };
        paint(out, self.color, style, &format!("{:>2} ", number + 1));
        let tokens = |n: usize| format!("{} token{}", count(n as u64), if n == 1 { "" } else { "s" });
        let mut words = match segment.token {
            0 => tokens(ids.len()),
            token => format!("continues at token {}, {}", count(token.into()), tokens(ids.len())),
        };
        let ended = self.tokenizer.eos().is_some_and(|eos| ids.last() == Some(&eos));
        if last && !ended && self.plan.config.tokenizer.append_eos {
            words += ", goes on after this block";
        }
        out.push_str(&words);
        let source = &self.plan.sources[block.source as usize];
        let place = segment.place;
        let shard = source.dealing_at(place.epoch).share(block.lane, place.epoch, place.walk);
        let shard = shard.map_or(String::new(), |share| safe(&source.manifest.shards[share.shard as usize].name));
        let mut origin = format!("  {shard}");
        if place.epoch > 0 {
            origin += &format!(", epoch {}", place.epoch);
        }
        if place.unit > 0 {
            origin += &format!(", the lane's unit {}", place.unit);
        }
        origin += &format!(", window {}", place.window);
        match place.row {
            Some(row) => origin += &format!(" from row {row}"),
            None => origin += &format!(" from byte {}", place.byte),
        }
        origin += &format!(", document {}", segment.document);
        paint(out, self.color, Style::Dim, &origin);
        out.push('\n');
    }

    /// A conversation's text: what is masked is dim, or without colours what is trained stands between `«` and `»`.
    fn masked_segment(&self, lines: &mut Lines, style: Style, ids: &[u32], masked: &dyn Fn(usize) -> bool) {
        let mut start = 0;
        while start < ids.len() {
            let hidden = masked(start);
            let end = (start..ids.len()).find(|&at| masked(at) != hidden).unwrap_or(ids.len());
            if !hidden && !self.color {
                lines.text(Style::Special, "«");
            }
            let styles = if hidden { (Style::Dim, Style::DimSpecial) } else { (style, Style::Special) };
            self.segment(lines, styles, &ids[start..end]);
            if !hidden && !self.color {
                lines.text(Style::Special, "»");
            }
            start = end;
        }
    }

    /// A document's text in the first style, special tokens in the second.
    fn segment(&self, lines: &mut Lines, (style, special): (Style, Style), ids: &[u32]) {
        // Runs of text between special tokens: a character may take several tokens.
        let is_special = |id: &u32| self.special.binary_search(id).is_ok();
        let mut pieces: Vec<(Style, String)> = Vec::new();
        for run in ids.chunk_by(|a, b| !is_special(a) && !is_special(b)) {
            match is_special(&run[0]) {
                true => pieces.push((special, self.special_text(run[0]))),
                false => pieces.push((style, self.tokenizer.decode(run))),
            }
        }
        for (style, text) in pieces {
            if style == special {
                lines.text(style, &text);
                continue;
            }
            let (begin, left_out, end) = shorten(&text, self.chars);
            lines.text(style, begin);
            if left_out > 0 {
                lines.end();
                lines.text(Style::Dim, &format!("... {} characters ...", count(left_out as u64)));
                lines.end();
                lines.text(style, end);
            }
        }
    }

    /// A special token's literal; without colours in brackets, since a document may hold the literal as text.
    fn special_text(&self, id: u32) -> String {
        let text = match self.tokenizer.decode(&[id]) {
            text if text.is_empty() => format!("<id {id}>"),
            text => text,
        };
        if self.color { text } else { format!("⟦{text}⟧") }
    }
}
