//! Tables of text, and numbers as people read them.

/// Rows of cells; the first row is the head.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Columns that are aligned to the left; numbers go to the right.
    left: Vec<usize>,
}

impl Table {
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>, left: &[usize]) -> Self {
        Table { rows: vec![head.into_iter().map(Into::into).collect()], left: left.to_vec() }
    }

    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// One line a row, columns as wide as their widest cell, each line after `indent`.
    pub fn text(&self, indent: &str) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = indent.to_owned();
            for (column, cell) in row.iter().enumerate() {
                let space = " ".repeat(widths[column] - cell.chars().count());
                let gap = if column > 0 { "  " } else { "" };
                match self.left.contains(&column) {
                    true => line += &format!("{gap}{cell}{space}"),
                    false => line += &format!("{gap}{space}{cell}"),
                }
            }
            text += line.trim_end();
            text += "\n";
        }
        text
    }
}

/// `1234567` as `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in units of 1000: `104.0 MB`.
pub fn size(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Bytes in units of 1024, as configs have them: `794 KiB`.
pub fn binary(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() < 0.05 || value >= 99.95 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

/// One number where both are equal, else `least to most`.
pub fn range(least: String, most: String) -> String {
    if least == most { least } else { format!("{least} to {most}") }
}

/// Numbers in runs: `0 4 8 .. 28` where they are evenly spaced and many.
pub fn series(numbers: &[u32]) -> String {
    let step = |n: &[u32]| n[1] - n[0];
    if numbers.len() > 4 && numbers.windows(2).all(|pair| step(pair) == step(numbers)) {
        let last = numbers[numbers.len() - 1];
        if step(numbers) == 1 {
            return format!("{} to {last}", numbers[0]);
        }
        return format!("{}, {}, {} .. {last}", numbers[0], numbers[1], numbers[2]);
    }
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns line up, numbers to the right.
    #[test]
    fn tables_line_up() {
        let mut table = Table::new(["name", "size"], &[0]);
        table.row(["a", "1"]);
        table.row(["long name", "12345"]);
        assert_eq!(table.text("  "), "  name        size\n  a              1\n  long name  12345\n");
    }

    #[test]
    fn numbers() {
        assert_eq!(["0", "999", "1,000", "12,345,678"], [0, 999, 1000, 12_345_678].map(count).as_slice());
        assert_eq!(["999 B", "1.0 kB", "104.0 MB"], [999, 1000, 103_995_709].map(size).as_slice());
        assert_eq!(["16 MiB", "793 KiB", "1.5 KiB"], [16 << 20, 812_466, 1536].map(binary).as_slice());
        assert_eq!(series(&[0, 1, 2, 3, 4, 5]), "0 to 5");
        assert_eq!(series(&[1, 5, 9, 13, 17]), "1, 5, 9 .. 17");
        assert_eq!(series(&[3, 7]), "3, 7");
    }
}
