//! Keeps the parts of a room apart: if a type's methods are in many files, each of these files reaches all of its
//! state. So a type's `impl` blocks are in few files, and other code asks the type for its state.

use std::collections::{BTreeMap, BTreeSet};

use crate::sources::{Source, sources};

/// Files in which the methods of one type may stand.
const FILES_MAX: usize = 3;

/// Types whose methods are in more files: the file that defines each, and the number of files. Lower the number when
/// you remove some. The world that tests the failover machine plays the network, the hosts and the clients.
const SPREAD: &[(&str, &str, usize)] = &[("model/fleet/simulation", "World", 9)];

/// Types that only pass calls on to their components, and have little of their own: limits for methods and fields.
const DISPATCHERS: &[(&str, &str, usize, usize)] = &[
    ("proxy/worker", "Worker", 27, 9),
    ("model/fleet/failover", "Failover", 38, 11),
    ("offload/engine", "Engine", 11, 10),
];

/// The limits for every type of the offload engine but the listed ones: the room, methods and fields.
const ENGINE: (&str, usize, usize) = ("offload/engine", 20, 14);

/// Where a type is defined, and its name.
type Definition = (String, String);

/// The methods and fields of one type in the sources, without those of traits.
#[derive(Debug, Default)]
struct Methods {
    files: BTreeSet<String>,
    count: usize,
}

#[test]
fn the_methods_of_a_type_stand_in_few_files() {
    let sources = sources();
    let files: Vec<_> = sources.iter().map(|source| (source.name(), source.code.as_str())).collect();
    let mut faults = Vec::new();
    for ((file, name), methods) in methods(&files) {
        let listed = SPREAD.iter().find(|(at, listed, _)| *at == file && *listed == name);
        let most = listed.map_or(FILES_MAX, |(_, _, most)| *most);
        if methods.files.len() > most {
            let files: Vec<_> = methods.files.into_iter().collect();
            faults.push(format!("{name} of {file}: {} files, at most {most}: {}", files.len(), files.join(", ")));
        }
    }
    assert!(faults.is_empty(), "cut them into parts with a state of their own:\n{}", faults.join("\n"));
}

#[test]
fn the_worker_the_failover_and_the_engine_are_few_components() {
    let sources = sources();
    let files: Vec<_> = sources.iter().map(|source| (source.name(), source.code.as_str())).collect();
    let methods = methods(&files);
    for (file, name, methods_max, fields_max) in DISPATCHERS {
        let count = methods[&((*file).to_owned(), (*name).to_owned())].count;
        assert!(count <= *methods_max, "{name}: {count} methods, at most {methods_max}");
        let is_there = |source: &&Source| source.name() == *file;
        let fields = fields(&sources.iter().find(is_there).expect("the file was not found").code, name);
        assert!(!fields.is_empty() && fields.len() <= *fields_max, "{name}: at most {fields_max} fields: {fields:?}");
    }
}

#[test]
fn the_parts_of_the_offload_engine_are_small() {
    let sources = sources();
    let files: Vec<_> = sources.iter().map(|source| (source.name(), source.code.as_str())).collect();
    let (room, methods_max, fields_max) = ENGINE;
    let is_listed = |file: &str, name: &str| DISPATCHERS.iter().any(|listed| (listed.0, listed.1) == (file, name));
    let of_engine = |file: &str| file == room || file.starts_with(&format!("{room}/"));
    let mut faults = Vec::new();
    let (mut methods_most, mut fields_most) = (0, 0);
    for ((file, name), methods) in methods(&files).iter().filter(|((file, _), _)| of_engine(file)) {
        let code = files.iter().find(|(at, _)| at == file).expect("its file").1;
        let fields = fields(code, name).len();
        if is_listed(file, name) {
            continue;
        }
        (methods_most, fields_most) = (methods_most.max(methods.count), fields_most.max(fields));
        if methods.count > methods_max || fields > fields_max {
            faults.push(format!("{name} of {file}: {} methods, {fields} fields", methods.count));
        }
    }
    let most = format!("at most {methods_max} methods and {fields_max} fields");
    assert!(faults.is_empty(), "{most}:\n{}", faults.join("\n"));
    assert_eq!((methods_most, fields_most), (methods_max, fields_max), "lower the limits");
}

/// Otherwise a reader of the file takes one for the other, and so do these tests.
#[test]
fn no_file_defines_a_type_twice() {
    let faults: Vec<_> = sources().iter().flat_map(|source| twice(&source.name(), &source.code)).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn a_type_that_is_defined_twice_is_found() {
    let found = |code| twice("proxy", code).len();
    assert_eq!(found("struct A;\nmod b {\n    pub(super) struct A {}\n}"), 1);
    assert_eq!(found("enum A {}\nfn f() {\n    struct A;\n}"), 1);
    assert_eq!(found("impl B for C {\n    type A = u8;\n}\nimpl B for D {\n    type A = u8;\n}\nstruct A;"), 0);
    assert_eq!(found("struct A;\nimpl A { fn a() {} }\nstruct Ab;"), 0);
}

/// The types that `code` defines more than once.
fn twice(file: &str, code: &str) -> Vec<String> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for line in code.lines() {
        let words: Vec<_> = crate::sources::words(line).collect();
        let kinds = ["struct", "enum", "union", "trait", "type"];
        // An associated type stands in each `impl` of its trait.
        let defines = |kind: &str| kinds.contains(&kind) && !(kind == "type" && line.starts_with(' '));
        for pair in words.windows(2).filter(|pair| defines(pair[0]) && pair[1].starts_with(char::is_uppercase)) {
            *places.entry(pair[1]).or_default() += 1;
        }
    }
    let several = places.into_iter().filter(|(_, number)| *number > 1);
    several.map(|(name, number)| format!("{file} defines {name} {number} times")).collect()
}

#[test]
fn methods_and_fields_are_counted_and_those_of_traits_are_not() {
    let worker = "struct Worker<T> where T: A {\n    pub(super) cx: Context,\n    queue: Vec<(u64, a::B)>,\n    each: T,\n}\n\
                  impl<T: Fn(u8) -> u8> Worker<T> {\n    pub fn run(&self, act: fn(u8)) { fn inner() {} if true { } }\n    const fn stop() {}\n}\n\
                  impl<T> Drop for Worker<T> {\n    fn drop(&mut self) {}\n}";
    let files = [
        ("proxy/worker".to_owned(), worker),
        ("proxy/worker/more".to_owned(), "impl super::Worker<'_> { fn more(&self) -> char { '{' } fn last() {} }"),
        ("proxy/relay/worker".to_owned(), "enum Worker { A }\nimpl Worker { fn own() {} }"),
        ("proxy/relay/worker/of".to_owned(), "impl Worker { fn other() {} }"),
    ];
    let methods = methods(&files);
    let of = |file: &str| {
        let found = &methods[&(file.to_owned(), "Worker".to_owned())];
        (found.files.len(), found.count)
    };
    assert_eq!((of("proxy/worker"), of("proxy/relay/worker")), ((2, 4), (2, 2)));
    assert_eq!(fields(worker, "Worker"), ["cx", "queue", "each"]);
}

/// The methods of each type that `files` define, by where it is defined.
fn methods(files: &[(String, &str)]) -> BTreeMap<Definition, Methods> {
    let mut defined: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (file, code) in files {
        let words: Vec<_> = crate::sources::words(code).collect();
        let names = words.windows(2).filter(|pair| ["struct", "enum", "union"].contains(&pair[0])).map(|pair| pair[1]);
        names.for_each(|name| defined.entry(name).or_default().push(file));
    }
    let mut methods: BTreeMap<Definition, Methods> = BTreeMap::new();
    for (file, code) in files {
        for block in blocks(code) {
            let Some(name) = type_of(&block.head) else { continue };
            // If several types have that name, the nearest definition counts.
            let nearest = defined.get(name).and_then(|at| at.iter().max_by_key(|at| shared_segments(at, file)));
            let Some(nearest) = nearest else { continue };
            let found = methods.entry(((*nearest).to_owned(), name.to_owned())).or_default();
            found.files.insert(file.clone());
            found.count += functions(block.body);
        }
    }
    methods
}

/// Names of the fields of the struct `name`.
fn fields<'a>(code: &'a str, name: &str) -> Vec<&'a str> {
    let is_it = |block: &Block<'_>| block.head.iter().zip(["struct", name]).all(|(word, wanted)| *word == wanted);
    let body = blocks(code).into_iter().find(is_it).map_or("", |block| block.body);
    let mut depth = 0_i32;
    let mut named = Vec::new();
    for (at, c) in body.char_indices() {
        match c {
            '(' | '<' | '[' => depth += 1,
            ')' | '>' | ']' => depth -= 1,
            ':' if depth == 0 && !body[at + 1..].starts_with(':') && !body[..at].ends_with(':') => {
                named.extend(crate::sources::words(&body[..at]).last());
            }
            _ => {}
        }
    }
    named
}

/// The text before each outermost pair of braces, since the end of the last one, and the text inside.
struct Block<'a> {
    /// Words, `<` and `>`; without attributes and visibility.
    head: Vec<&'a str>,
    body: &'a str,
}

fn blocks(code: &str) -> Vec<Block<'_>> {
    let (mut depth, mut from, mut body_from) = (0, 0, 0);
    let mut blocks = Vec::new();
    for (at, c) in code.char_indices() {
        let quoted = code[..at].ends_with('\'') && code[at + c.len_utf8()..].starts_with('\'');
        match c {
            _ if quoted => {}
            '{' => {
                depth += 1;
                body_from = if depth == 1 { at + 1 } else { body_from };
            }
            '}' => {
                depth -= 1;
                if depth == 0 {
                    blocks.push(Block { head: head(&code[from..body_from - 1]), body: &code[body_from..at] });
                    from = at + 1;
                }
            }
            ';' if depth == 0 => from = at + 1,
            _ => {}
        }
    }
    blocks
}

/// The text from the keyword on.
fn head(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let in_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = if in_word(first) { rest.find(|c| !in_word(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
        let (word, after) = rest.split_at(length);
        if word == "-" && after.starts_with('>') {
            // The arrow of a function's type closes nothing.
            rest = &after[1..];
            continue;
        }
        if in_word(first) || word == "<" || word == ">" {
            words.push(word);
        }
        rest = after;
    }
    let kind = words.iter().position(|word| ["impl", "struct", "enum", "trait", "fn", "mod"].contains(word));
    words.split_off(kind.unwrap_or(0))
}

/// The type whose own methods the block defines; `None`: a trait's methods, or another kind of block.
fn type_of<'a>(head: &[&'a str]) -> Option<&'a str> {
    let (_, after) = head.split_first().filter(|(first, _)| **first == "impl")?;
    let mut depth = 0;
    let mut name = None;
    for word in after {
        match *word {
            "<" => depth += 1,
            ">" => depth -= 1,
            "for" if depth == 0 => return None,
            "where" if depth == 0 => break,
            word if depth == 0 => name = Some(word),
            _ => {}
        }
    }
    name
}

/// The functions of a block, without nested ones.
fn functions(body: &str) -> usize {
    let mut depth = 0;
    let mut count = 0;
    for (at, c) in body.char_indices() {
        let quoted = body[..at].ends_with('\'') && body[at + c.len_utf8()..].starts_with('\'');
        match c {
            '{' if !quoted => depth += 1,
            '}' if !quoted => depth -= 1,
            'f' if depth == 0 && body[at..].starts_with("fn ") => {
                count += usize::from(!body[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'));
            }
            _ => {}
        }
    }
    count
}

fn shared_segments(one: &str, other: &str) -> usize {
    one.split('/').zip(other.split('/')).take_while(|(one, other)| one == other).count()
}
