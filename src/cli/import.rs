//! `baton import`: the files of HAProxy and keepalived, in Baton's words.

use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::new_file::NewFile;
use super::output::{CliError, Output, colours};
use crate::config;
use crate::model::humane::{plural, printable};
use crate::translate::{ForeignFile, ForeignTranslation, Ledger, LineOutcome, TranslatedLine, translate};

/// Something that changes how connections are treated has no equal.
const EXIT_CHANGED: u8 = 3;

/// A file that is no configuration must not fill the memory.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Characters of a line, or of a note, that are printed.
const LINE_CHARS_MAX: usize = 400;

#[derive(Debug, Args)]
#[command(after_help = "\
The file goes to standard output, or to --output FILE; standard error tells what became of each line.

Exit code: 0 all lines that treat connections were translated, 3 some have no equal, 1 the file cannot be used")]
pub(super) struct ImportArguments {
    /// HAProxy's configuration.
    #[arg(value_name = "HAPROXY.CFG")]
    haproxy: PathBuf,
    /// keepalived's configuration.
    #[arg(value_name = "KEEPALIVED.CONF")]
    keepalived: Option<PathBuf>,
    /// Writes the file there, and overwrites none.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrites the file of --output.
    #[arg(long, requires = "output")]
    force: bool,
}

pub(super) fn run(arguments: &ImportArguments, output: &Output) -> Result<ExitCode, CliError> {
    if let Some(output) = &arguments.output {
        for source in [Some(&arguments.haproxy), arguments.keepalived.as_ref()].into_iter().flatten() {
            refuse_source(output, source)?;
        }
    }
    let haproxy = read(&arguments.haproxy)?;
    refuse_other(&arguments.haproxy, &haproxy.text, config::HAPROXY)?;
    let keepalived = arguments.keepalived.as_deref().map(read).transpose()?;
    if let (Some(path), Some(file)) = (&arguments.keepalived, &keepalived) {
        refuse_other(path, &file.text, config::KEEPALIVED)?;
    }
    let translation = translate(&haproxy, keepalived.as_ref());
    let target = arguments.output.as_deref().unwrap_or(Path::new(DEFAULT_TARGET));
    // By the daemon's own loader: a file that Baton does not take is no translation.
    let errors = config::parse(&translation.toml, target).err();
    if let Some(path) = &arguments.output {
        write(path, arguments.force, &translation.toml)?;
    }
    if output.json {
        output.document(&document(&translation, errors.as_ref()))?;
    } else {
        if arguments.output.is_none() {
            output.text(&translation.toml)?;
        }
        let mut stderr = io::stderr().lock();
        stderr.write_all(report(&translation).as_bytes())?;
        if let Some(rejected) = &errors {
            let colour = colours(&io::stderr());
            write!(stderr, "\n{}", rejected.render(colour))?;
            writeln!(stderr, "baton: `baton check` takes the file once these errors are fixed")?;
        }
    }
    Ok(match errors {
        Some(_) => ExitCode::FAILURE,
        None if translation.changes_behaviour() => EXIT_CHANGED.into(),
        None => ExitCode::SUCCESS,
    })
}

fn read(path: &Path) -> Result<ForeignFile, CliError> {
    let fault = |source| CliError::path(path, source);
    let mut bytes = Vec::new();
    // A pipe, as of `<(ssh cp1 cat /etc/haproxy/haproxy.cfg)`, is as good as a file; a device may have no end.
    let file = File::open(path).map_err(fault)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(fault)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(fault(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "it has more than 1 MiB, which no configuration has",
        )));
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        let line = 1 + bytes[..at].iter().filter(|byte| **byte == b'\n').count();
        let why = format!("line {line} has a NUL byte, so this is no configuration in UTF-8");
        return Err(fault(io::Error::new(io::ErrorKind::InvalidData, why)));
    }
    let name = printable(&path.display().to_string()).into_owned();
    Ok(ForeignFile::new(name, &bytes))
}

/// Fails if the file at `output` is that at `source`, by whatever name: --force would leave nothing of it.
fn refuse_source(output: &Path, source: &Path) -> Result<(), CliError> {
    let [there, read] = [output, source].map(|path| path.metadata().ok().filter(Metadata::is_file));
    let is_same = there.zip(read).is_some_and(|(there, read)| (there.dev(), there.ino()) == (read.dev(), read.ino()));
    if !is_same {
        return Ok(());
    }
    let why = format!("it is the file that is translated, {}: name another file for --output", source.display());
    Err(CliError::path(output, io::Error::new(io::ErrorKind::AlreadyExists, why)))
}

/// Fails if `text` is not of `wanted`, so far as its first lines tell: the two files may have changed places.
fn refuse_other(path: &Path, text: &str, wanted: &'static str) -> Result<(), CliError> {
    let why = match config::program_of(text) {
        Some(program) if program == wanted => return Ok(()),
        // keepalived.conf may have nothing but the names of further files.
        None if wanted == config::KEEPALIVED => return Ok(()),
        None => "it has no section of HAProxy: global, defaults, frontend, backend or listen".to_owned(),
        Some(program) => format!(
            "this looks like a configuration of {program}, where that of {wanted} belongs: baton import haproxy.cfg keepalived.conf"
        ),
    };
    Err(CliError::path(path, io::Error::new(io::ErrorKind::InvalidData, why)))
}

fn write(path: &Path, force: bool, text: &str) -> Result<(), CliError> {
    let fault = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => {
            CliError::path(path, io::Error::new(source.kind(), "it exists; --force overwrites it"))
        }
        _ => CliError::path(path, source),
    };
    if !force && path.symlink_metadata().is_ok() {
        return Err(fault(io::ErrorKind::AlreadyExists.into()));
    }
    let there = path.metadata().ok();
    // A pipe or a terminal takes what it can; a file is whole, or as it was, whatever happens.
    if there.as_ref().is_some_and(|there| !there.is_file()) {
        let opened = File::options().write(true).open(path);
        return opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(fault);
    }
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let new = NewFile::write(&target, text.as_bytes(), 0o666).map_err(fault)?;
    there.map_or(Ok(()), |there| new.set_permissions(there.permissions())).map_err(fault)?;
    new.place().map_err(fault)
}

fn document(translation: &ForeignTranslation, errors: Option<&config::Rejected>) -> serde_json::Value {
    let file = |ledger: &Ledger| {
        let line = |line: &TranslatedLine| {
            serde_json::json!({
                "line": line.number, "text": line.text, "outcome": line.outcome(), "changes_behaviour": line.changes_behaviour(),
                "notes": line.notes,
            })
        };
        serde_json::json!({ "file": ledger.name, "lines": ledger.lines().iter().map(line).collect::<Vec<_>>() })
    };
    serde_json::json!({
        "toml": translation.toml,
        "files": translation.ledgers.iter().map(file).collect::<Vec<_>>(),
        "changes_behaviour": translation.changes_behaviour(),
        "steps": translation.steps,
        "errors": errors.map(|rejected| &rejected.errors[..]).unwrap_or_default(),
    })
}

/// What became of each line that says something, and the sum.
fn report(translation: &ForeignTranslation) -> String {
    let mut text = String::new();
    for ledger in &translation.ledgers {
        text += &lines(ledger);
    }
    for ledger in &translation.ledgers {
        text += &sum(ledger);
    }
    for step in &translation.steps {
        text += &format!("to do: {}\n", printable(step));
    }
    text
}

fn lines(ledger: &Ledger) -> String {
    let mut text = String::new();
    for line in ledger.lines().iter().filter(|line| !line.is_silent()) {
        text += &format!("{}:{}: {}\n", ledger.name, line.number, shown(&line.text));
        let of = |outcome| line.notes.iter().filter(move |note| note.outcome == outcome);
        let keys: Vec<_> = of(LineOutcome::Translated).map(|note| shown(&note.words)).collect();
        if !keys.is_empty() {
            text += &format!("    translated: {}\n", keys.join("; "));
        }
        of(LineOutcome::Kept).for_each(|note| text += &format!("    kept:       {}\n", shown(&note.words)));
        for note in of(LineOutcome::NoEqual) {
            let marked = if note.changes_behaviour { "NO EQUAL:" } else { "no equal:" };
            text += &format!("    {marked}   {}\n", shown(&note.words));
        }
    }
    text
}

/// `text`, which is the file's or quotes it, at a length that a terminal can bear.
fn shown(text: &str) -> String {
    match text.char_indices().nth(LINE_CHARS_MAX) {
        Some((end, _)) => {
            format!("{} … ({} in all)", printable(&text[..end]), plural(text.chars().count() as u64, "character"))
        }
        None => printable(text).into_owned(),
    }
}

fn sum(ledger: &Ledger) -> String {
    let lines = ledger.lines();
    let of = |outcome| lines.iter().filter(|line| line.outcome() == outcome).count() as u64;
    let silent = lines.iter().filter(|line| line.is_silent()).count() as u64;
    let changing: Vec<_> =
        lines.iter().filter(|line| line.changes_behaviour()).map(|line| line.number.to_string()).collect();
    let changing = match &changing[..] {
        [] => "nothing that treats connections is lost".to_owned(),
        [one] => format!("line {one} treats connections in a way that has NO EQUAL"),
        all => format!("lines {} treat connections in a way that has NO EQUAL", all.join(", ")),
    };
    format!(
        "{}: {}: {} translated, {} kept, {} without an equal; {changing}\n",
        ledger.name,
        plural(lines.len() as u64, "line"),
        of(LineOutcome::Translated),
        of(LineOutcome::Kept) - silent,
        of(LineOutcome::NoEqual),
    )
}

/// Messages call the file so if it goes to standard output; relative paths in it begin beside it.
const DEFAULT_TARGET: &str = "baton.toml";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::samples;

    fn translated(haproxy: &str, keepalived: Option<&str>) -> ForeignTranslation {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/migration");
        let file =
            |name: &str| ForeignFile { name: name.to_owned(), text: std::fs::read_to_string(root.join(name)).unwrap() };
        translate(&file(haproxy), keepalived.map(file).as_ref())
    }

    fn shown(haproxy: &str, keepalived: Option<&str>) -> String {
        let translation = translated(haproxy, keepalived);
        let loaded = config::parse(&translation.toml, Path::new("baton.toml"));
        let warnings: Vec<_> = loaded.unwrap().warnings.iter().map(ToString::to_string).collect();
        format!("{}----\n{}----\n{}\n", translation.toml, report(&translation), warnings.join("\n"))
    }

    #[test]
    fn the_files_of_known_guides_are_translated_and_valid() {
        insta::assert_snapshot!("import-kubeadm", shown("kubeadm.cfg", Some("kubeadm-keepalived.conf")));
        insta::assert_snapshot!("import-kubespray", shown("kubespray.cfg", None));
        insta::assert_snapshot!("import-openshift", shown("openshift.cfg", None));
    }

    #[test]
    fn the_page_shows_what_is_printed() {
        let text = "defaults\n mode tcp\n option tcplog\n timeout connect 5s\n\nlisten apiserver\n bind 10.0.0.100:6443\n \
                    option httpchk GET /readyz\n default-server check check-ssl verify none\n server cp1 10.0.0.11:6443\n \
                    server cp2 10.0.0.12:6443 backup\n";
        let file = ForeignFile { name: "haproxy.cfg".to_owned(), text: text.to_owned() };
        let translation = translate(&file, None);
        assert_eq!(report(&translation), samples::shown("docs/haproxy.md", "baton import haproxy.cfg > baton.toml"));
        assert!(translation.toml.contains("listen = [\"10.0.0.100:6443\"]  # haproxy.cfg:7\n"), "{}", translation.toml);
    }

    #[test]
    fn the_file_that_is_translated_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let [path, link, hard, other] =
            ["haproxy.cfg", "link.toml", "hard.toml", "other"].map(|it| directory.path().join(it));
        let text = "listen api\nbind 127.0.0.1:6443\nserver a 10.0.0.1:6443\n";
        std::fs::write(&path, text).unwrap();
        std::fs::write(&other, "vrrp_instance a {\n}\n").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        std::fs::hard_link(&path, &hard).unwrap();
        let output = Output::new(false);
        for target in [&path, &link, &hard, &other] {
            let (haproxy, keepalived) = (path.clone(), Some(other.clone()));
            let arguments = ImportArguments { haproxy, keepalived, output: Some(target.clone()), force: true };
            let error = run(&arguments, &output).unwrap_err().to_string();
            assert!(error.contains("it is the file that is translated"), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn a_file_is_overwritten_only_by_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("baton.toml");
        write(&path, false, "one").unwrap();
        let error = write(&path, false, "two").unwrap_err().to_string();
        assert!(error.ends_with("baton.toml: it exists; --force overwrites it"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one");
        write(&path, true, "2").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "2");
    }
}
