//! The words of keepalived.conf(5).

use std::collections::HashMap;

/// A line's words. Braces are words of their own; quotes join words; `#` and `!` begin comments.
pub(crate) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for character in line.chars() {
        match character {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            _ if quoted => word.get_or_insert_default().push(character),
            '#' | '!' if word.is_none() => break,
            // ${NAME} is one word.
            '{' if word.as_ref().is_some_and(|word| word.ends_with('$')) => word.get_or_insert_default().push('{'),
            '}' if word.as_ref().is_some_and(|word| word.contains("${") && !word.contains('}')) => {
                word.get_or_insert_default().push('}');
            }
            '{' | '}' => {
                words.extend(word.take());
                words.push(character.to_string());
            }
            _ if character.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

/// `$NAME=VALUE`.
pub(crate) fn definition(line: &[String]) -> Option<(String, String)> {
    let (name, value) = line.first()?.strip_prefix('$')?.split_once('=')?;
    let rest = line[1..].iter().map(|word| format!(" {word}"));
    Some((name.to_owned(), value.to_owned() + &rest.collect::<String>()))
}

/// Whether a line `script` runs `baton ready`: the program that answers whether its host should have the VIP.
pub(crate) fn asks_baton(line: &[String]) -> bool {
    // In single quotes it is several words.
    let command = line.get(1..).unwrap_or_default().join(" ");
    command.contains("baton") && command.contains("ready")
}

/// `word` with the values of the variables in it that are known.
pub(crate) fn substituted(word: &str, variables: &HashMap<String, String>) -> String {
    let Some((before, after)) = word.split_once('$') else { return word.to_owned() };
    let named = after.strip_prefix('{').and_then(|rest| rest.split_once('}'));
    let end = after.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(after.len());
    let (name, rest) = named.unwrap_or_else(|| after.split_at(end));
    match variables.get(name) {
        Some(value) => format!("{before}{value}{rest}"),
        None => word.to_owned(),
    }
}
