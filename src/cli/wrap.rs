//! Breaks lines for terminals that are too narrow for them. Colour codes have no width.

/// A text beside other columns gets no less room; below, it begins further left.
pub(super) const TEXT_MIN: usize = 24;

/// The lines of `text` in at most `width` columns. A line goes on below its last column, the text behind the last gap of two spaces.
pub(super) fn wrap(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    text.split_inclusive('\n')
        .map(|line| {
            let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
            wrap_line(line, width, hang(line)) + end
        })
        .collect()
}

/// `line` in at most `width` columns; what follows the first break begins at the column `hang`.
pub(super) fn wrap_line(line: &str, width: usize, hang: usize) -> String {
    let hang = if hang + TEXT_MIN <= width { hang } else { (width / 2).min(4) };
    let (mut text, mut rest) = (String::new(), line);
    let mut from = 0;
    while let Some((end, next)) = cut(rest, width.max(1), from, hang) {
        text += rest[..end].trim_end();
        text += "\n";
        text += &" ".repeat(hang);
        rest = rest[next..].trim_start();
        from = hang;
    }
    text + rest
}

/// Where the part ends that fits, and where the next one begins; its first letter stands at the column `from`. `None`: all of it fits.
fn cut(line: &str, width: usize, from: usize, hang: usize) -> Option<(usize, usize)> {
    let (mut column, mut space, mut full) = (from, None, None);
    for (at, letter) in visible(line) {
        if column >= width {
            full = Some(at);
            break;
        }
        if letter == ' ' && column > hang.max(from) {
            space = Some(at);
        }
        column += 1;
    }
    let full = full?;
    // A word that ends at the edge is whole.
    let space = if line[full..].starts_with(' ') { Some(full) } else { space };
    Some(space.map_or((full, full), |at| (at, at + 1)))
}

/// The column behind the last gap of two spaces, or that of the first letter and two more.
fn hang(line: &str) -> usize {
    let (mut column, mut spaces, mut last, mut first) = (0, 0, None, None);
    for (_, letter) in visible(line) {
        if letter != ' ' {
            if spaces >= 2 && first.is_some() {
                last = Some(column);
            }
            first = first.or(Some(column));
            spaces = 0;
        } else {
            spaces += 1;
        }
        column += 1;
    }
    last.unwrap_or(first.unwrap_or_default() + 2)
}

/// The letters with their places, without the codes of colours.
fn visible(line: &str) -> impl Iterator<Item = (usize, char)> {
    let mut in_code = false;
    line.char_indices().filter(move |(_, letter)| {
        let is_code = in_code || *letter == '\x1b';
        in_code = is_code && *letter != 'm';
        !is_code
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_goes_on_below_its_last_column_or_further_left_if_there_is_no_room() {
        let row = "  Baton killed     ?  depends on how the VIP moves: set cluster.vrrp_advert_interval";
        let expected = "  Baton killed     ?  depends on how the VIP moves: set\n                      cluster.vrrp_advert_interval\n";
        assert_eq!(wrap(&format!("{row}\n"), Some(60)), expected);
        let narrow = wrap(row, Some(40));
        assert_eq!(
            narrow,
            "  Baton killed     ?  depends on how the\n    VIP moves: set\n    cluster.vrrp_advert_interval"
        );
        assert_eq!(wrap(row, None), row);
        // Colours have no width, and a longer word than the terminal is broken.
        assert_eq!(wrap("\x1b[31mab cd\x1b[0m ef", Some(8)), "\x1b[31mab cd\x1b[0m ef");
        assert_eq!(wrap("abcdefgh", Some(4)), "abcd\n  ef\n  gh");
    }

    proptest! {
        #[test]
        fn no_letter_is_lost_and_no_line_is_too_long(line in "[a-zµ ]{0,120}", width in 8usize..100) {
            let wrapped = wrap(&line, Some(width));
            prop_assert!(wrapped.lines().all(|line| line.chars().count() <= width), "{wrapped}");
            let letters = |text: &str| text.chars().filter(|letter| !letter.is_whitespace()).collect::<String>();
            prop_assert_eq!(letters(&wrapped), letters(&line));
        }
    }
}
