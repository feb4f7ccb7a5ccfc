//! What all pages are made of: foreign text, states, and the frame around a page.

use std::fmt::{self, Display, Write};

use crate::model::weight::Weight;

/// The beginning of a page, up to its body. `more`: elements for its head.
pub(crate) fn head(title: &str, icon: &str, more: &str) -> String {
    let mut page = String::with_capacity(128 * 1024);
    let title = Escaped(title);
    page.push_str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n");
    write(&mut page, format_args!("{more}<title>{title}</title>\n<link rel=\"icon\" href=\"{icon}\">\n"));
    write(&mut page, format_args!("<style>\n{STYLE}</style>\n</head>\n<body>\n"));
    page
}

/// The class of a weight in the style sheet.
pub(crate) fn tone(weight: Weight) -> &'static str {
    weight.label()
}

pub(crate) fn write(page: &mut String, what: fmt::Arguments<'_>) {
    page.write_fmt(what).expect("a string takes everything");
}

/// A state as a coloured mark and a word, so that it is readable without colour.
pub(crate) struct Pill<'a>(pub &'a str, pub &'a str);

impl Display for Pill<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<span class=\"pill {}\">{}</span>", self.0, Escaped(self.1))
    }
}

/// Foreign text, escaped for HTML text and quoted attributes.
pub(crate) struct Escaped<T>(pub T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.0.write_str("&amp;")?,
                '<' => self.0.write_str("&lt;")?,
                '>' => self.0.write_str("&gt;")?,
                '"' => self.0.write_str("&quot;")?,
                '\'' => self.0.write_str("&#39;")?,
                other => self.0.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// A relay baton; upright and in another colour while not everything is well.
pub(crate) fn icon(weight: Weight) -> String {
    let (colour, turned) = match weight {
        Weight::Good => ("2f6f5e", -35),
        Weight::Plain | Weight::Notice => ("d98200", 90),
        Weight::Bad => ("d1261b", 90),
    };
    format!(
        "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect x='1' y='6' width='14' \
         height='4' rx='2' fill='%23{colour}' transform='rotate({turned} 8 8)'/%3E%3C/svg%3E"
    )
}

pub(super) const STYLE: &str = include_str!("page.css");
