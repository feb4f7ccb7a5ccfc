//! The syntax of keepalived.conf(5): words in lines, blocks in braces.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use crate::model::keepalived::{definition, substituted, words};

/// Limit for nested includes.
const DEPTH_MAX: u32 = 8;

/// A line, and the block after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub words: Vec<String>,
    pub block: Vec<Node>,
}

/// A whole file, and the included files that were not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct File {
    pub nodes: Vec<Node>,
    pub unread: Vec<String>,
}

/// Reads `path` and the files that it includes.
pub(super) fn read(path: &Path) -> io::Result<File> {
    let mut unread = Vec::new();
    let lines = gather(path, &mut unread, 0)?;
    Ok(File { nodes: parse(&lines), unread })
}

fn gather(path: &Path, unread: &mut Vec<String>, depth: u32) -> io::Result<Vec<Vec<String>>> {
    let text = std::fs::read_to_string(path)?;
    let mut lines = Vec::new();
    for line in text.lines().map(words) {
        match line.as_slice() {
            [include, file] if include == "include" => {
                let below = path.parent().unwrap_or(Path::new("/")).join(file);
                // Patterns are not expanded, which would need a shell's rules.
                match gather(&below, unread, depth + 1) {
                    Ok(inner) if depth < DEPTH_MAX => lines.extend(inner),
                    _ => unread.push(file.clone()),
                }
            }
            _ => lines.push(line),
        }
    }
    Ok(lines)
}

/// Makes a tree of lines of words. Words before a brace belong to its block; a surplus brace is ignored.
pub(super) fn parse(lines: &[Vec<String>]) -> Vec<Node> {
    let mut variables = HashMap::new();
    let mut open: Vec<Node> = vec![Node::default()];
    for line in lines {
        let mut pending: Vec<String> = Vec::new();
        let flush = |pending: &mut Vec<String>, open: &mut Vec<Node>| {
            if !pending.is_empty()
                && let Some(parent) = open.last_mut()
            {
                parent.block.push(Node { words: std::mem::take(pending), block: Vec::new() });
            }
        };
        if let Some((name, value)) = definition(line) {
            variables.insert(name, value);
            continue;
        }
        for word in line {
            match word.as_str() {
                "{" => {
                    // The name may be on the line before.
                    let mut words = std::mem::take(&mut pending);
                    if words.is_empty()
                        && let Some(before) = open.last_mut().and_then(|parent| parent.block.pop())
                    {
                        words = before.words;
                    }
                    open.push(Node { words, block: Vec::new() });
                }
                "}" => {
                    flush(&mut pending, &mut open);
                    if open.len() > 1
                        && let (Some(closed), Some(parent)) = (open.pop(), open.last_mut())
                    {
                        parent.block.push(closed);
                    }
                }
                // A line for one of several hosts begins with its name; here it counts for all.
                word if word.starts_with('@') && pending.is_empty() => {}
                word => pending.push(substituted(word, &variables)),
            }
        }
        flush(&mut pending, &mut open);
    }
    while open.len() > 1 {
        let closed = open.pop().unwrap_or_default();
        if let Some(parent) = open.last_mut() {
            parent.block.push(closed);
        }
    }
    open.pop().unwrap_or_default().block
}

impl Node {
    pub(super) fn keyword(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// The word after the keyword.
    pub(super) fn argument(&self) -> Option<&str> {
        self.words.get(1).map(String::as_str)
    }

    /// The last line of the block that begins with `keyword`.
    pub(super) fn find(&self, keyword: &str) -> Option<&Node> {
        self.block.iter().rev().find(|node| node.keyword() == keyword)
    }

    /// The argument of that line.
    pub(super) fn value(&self, keyword: &str) -> Option<&str> {
        self.find(keyword)?.argument()
    }

    /// Whether there is such a line, and it does not turn the option off.
    pub(super) fn is_on(&self, keyword: &str) -> bool {
        let off = |argument: &str| ["false", "no", "off"].contains(&argument);
        self.find(keyword).is_some_and(|node| !node.argument().is_some_and(off))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> Vec<Node> {
        parse(&text.lines().map(words).collect::<Vec<_>>())
    }

    #[test]
    fn lines_blocks_comments_quotes_and_variables_are_read() {
        let nodes = tree(
            "! all of it\n$IF=eth0\nvrrp_instance VI_1 {  # the first\n  state BACKUP\n  interface $IF\n  @host-a priority 100\n\
             virtual_ipaddress\n  {\n 10.0.0.100/32 dev ${IF}\n }\n script \"/bin/a b\" }\nother x { y }\n",
        );
        let instance = &nodes[0];
        assert_eq!(instance.words, ["vrrp_instance", "VI_1"]);
        assert_eq!(instance.value("interface"), Some("eth0"));
        assert_eq!(instance.value("priority"), Some("100"));
        assert_eq!(instance.find("virtual_ipaddress").unwrap().block[0].words, ["10.0.0.100/32", "dev", "eth0"]);
        assert_eq!(instance.value("script"), Some("/bin/a b"));
        assert_eq!((nodes[1].words.join(" "), nodes[1].block[0].keyword()), ("other x".to_owned(), "y"));
    }

    #[test]
    fn braces_that_do_not_match_end_somewhere() {
        assert_eq!(tree("} } a {").len(), 1);
        assert_eq!(tree("a { b { c").len(), 1);
    }
}
