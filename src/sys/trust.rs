//! Whether a file is what another user has put there, and not whoever may have taken this user's process over: a program that is started with
//! rights, its settings, or a file that is opened with rights.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, openat};

/// Who else may write it, or what it leads through.
#[derive(Debug)]
pub(crate) enum Distrust {
    Owner { path: PathBuf, uid: u32 },
    Mode { path: PathBuf, mode: u32 },
    Shared { path: PathBuf },
    Linked { path: PathBuf, names: u64 },
    Relative { path: PathBuf },
    Unreadable { path: PathBuf, source: io::Error },
}

/// Group and others may write.
const WRITABLE: u32 = 0o022;
/// In such a directory nobody may replace what belongs to another user (inode(7)), but everybody may give a file of another user's a
/// further name there, unless fs.protected_hardlinks forbids that (proc_sys_fs(5)): a directory has but one.
const STICKY: u32 = 0o1000;

/// As links in a path have it (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// Whether root alone can write the file at `path`, or put another one there, by any directory or link on the way to it. Returns its name
/// without links.
pub(crate) fn only_root_writes(path: &Path) -> Result<PathBuf, Distrust> {
    walk(path, |_| false, |_, uid| uid == 0)
}

/// Whether this process's user could have written the file, or could have another one opened in its place, by a directory or a link on the way to
/// it that is its own: then it is no use to ask whether the path is the right one. Root can do everything anyway. Returns its name without links.
pub(crate) fn only_others_write(path: &Path) -> Result<PathBuf, Distrust> {
    let own = rustix::process::geteuid().as_raw();
    match own {
        0 => without_links(path),
        own => walk(path, |_| false, |_, uid| uid != own),
    }
}

fn without_links(path: &Path) -> Result<PathBuf, Distrust> {
    path.canonicalize().map_err(|source| Distrust::Unreadable { path: path.to_owned(), source })
}

/// Opens a regular file for reading, with the rights of this thread, if no user but root and the file's own owner can have led to it: each
/// directory and link on the way is of one of the two, and nobody else may put a file into the file's directory. Any other user could have put
/// a link there, to a file that nobody has named.
///
/// # Errors
/// Those of open(2); or a sentence that says which directory or link could be another by now.
pub(crate) fn open_as_led_to(path: &Path) -> io::Result<File> {
    let refused = |why| match why {
        Distrust::Unreadable { source, .. } => source,
        why => io::Error::other(format!("{why}, who could have another file read in place of {}", path.display())),
    };
    let mut owners = Vec::new();
    let mut note = |at: &Path, uid| {
        owners.push((at.to_owned(), uid));
        true
    };
    let led_to = match rustix::process::geteuid().is_root() {
        true => without_links(path),
        false => walk(path, Metadata::is_file, &mut note),
    };
    // Links have been followed: one that is there now is new. Opening a FIFO would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let led_to = led_to.map_err(refused)?;
    let file = File::from(open_without_links(&led_to, flags)?);
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other(format!("{} is no regular file", path.display())));
    }
    // It is what was opened that counts: another file may have got the name since the walk.
    match owners.into_iter().find(|(_, uid)| ![0, found.uid()].contains(uid)) {
        Some((path, uid)) => Err(refused(Distrust::Owner { path, uid })),
        None => Ok(file),
    }
}

/// Opens an absolute path name by name, and follows no link: openat2(2) with RESOLVE_NO_SYMLINKS is not to be had under RestrictSUIDSGID of
/// systemd.exec(5).
///
/// # Errors
/// Those of open(2): ENOTDIR for a link on the way, and at the end where `flags` want a directory; else ELOOP.
pub(crate) fn open_without_links(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let on_the_way = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = rustix::fs::open("/", on_the_way, Mode::empty())?;
    let mut names = names(path);
    let last = names.pop_back().unwrap_or_else(|| ".".into());
    for name in names {
        directory = openat(&directory, name, on_the_way, Mode::empty())?;
    }
    Ok(openat(&directory, last, flags | OFlags::NOFOLLOW, Mode::empty())?)
}

/// Follows `path` as the kernel does, and looks at each directory and link that it comes by, and at the file, unless it is left out.
fn walk(
    path: &Path,
    is_left_out: impl Fn(&Metadata) -> bool,
    mut may_own: impl FnMut(&Path, u32) -> bool,
) -> Result<PathBuf, Distrust> {
    if !path.is_absolute() {
        return Err(Distrust::Relative { path: path.to_owned() });
    }
    let mut at = PathBuf::from("/");
    let mut rest: VecDeque<OsString> = names(path);
    let mut links = 0;
    // Whether others may give files names in the directory of `at`.
    let mut is_shared = false;
    loop {
        let unreadable = |source| Distrust::Unreadable { path: at.clone(), source };
        let found = at.symlink_metadata().map_err(unreadable)?;
        // The volume of a Kubernetes secret is a directory for all, with links of root's.
        if is_shared && found.is_symlink() && found.nlink() > 1 {
            return Err(Distrust::Linked { path: at, names: found.nlink() });
        }
        if is_shared && !found.is_symlink() && !found.is_dir() {
            return Err(Distrust::Shared { path: at });
        }
        let (mode, is_sticky) = (found.mode(), found.is_dir() && found.mode() & STICKY != 0);
        let is_writable = mode & WRITABLE != 0 && !found.is_symlink();
        if !is_left_out(&found) {
            if !may_own(&at, found.uid()) {
                return Err(Distrust::Owner { path: at, uid: found.uid() });
            }
            if is_writable && !is_sticky {
                return Err(Distrust::Mode { path: at, mode: mode & 0o7777 });
            }
        }
        if found.is_dir() {
            is_shared = is_writable;
        }
        if found.is_symlink() {
            links += 1;
            let target = at.read_link().map_err(unreadable)?;
            if links > LINKS_MAX {
                return Err(unreadable(io::Error::from_raw_os_error(libc::ELOOP)));
            }
            at.pop();
            if target.is_absolute() {
                at = PathBuf::from("/");
                is_shared = false;
            }
            let mut leads = names(&target);
            leads.append(&mut rest);
            rest = leads;
        }
        match rest.pop_front() {
            None => return Ok(at),
            Some(up) if up == ".." => drop(at.pop()),
            Some(name) => at.push(name),
        }
    }
}

/// The names in a path, also `..`.
fn names(path: &Path) -> VecDeque<OsString> {
    let is_name = |it: &Component<'_>| matches!(it, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_name).map(|it| it.as_os_str().to_owned()).collect()
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner { path, uid } => write!(f, "{} belongs to user {uid}", path.display()),
            Self::Mode { path, mode } => write!(f, "{} has mode {mode:o}", path.display()),
            Self::Linked { path, names } => write!(
                f,
                "{} has {names} names, of which others may have made this one, in a directory for all",
                path.display()
            ),
            Self::Shared { path } => {
                write!(f, "{} is in a directory in which others may give files names", path.display())
            }
            Self::Relative { path } => write!(f, "{} does not begin with /", path.display()),
            Self::Unreadable { path, source } => write!(f, "{} cannot be looked at: {source}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn a_file_that_another_user_could_have_written_is_told_from_root_s() {
        if rustix::process::geteuid().as_raw() != 0 {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("baton");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
        let said = |path: &Path| only_root_writes(path).err().map(|why| why.to_string()).unwrap_or_default();
        assert_eq!(said(&file), "");
        let link = folder.path().join("link");
        symlink(&file, &link).unwrap();
        assert_eq!(said(&link), "");
        fs::set_permissions(&file, Permissions::from_mode(0o775)).unwrap();
        assert!(said(&link).ends_with("/baton has mode 775"), "{}", said(&link));
        fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
        chown(&file, Some(7), None).unwrap();
        assert!(said(&file).ends_with("/baton belongs to user 7"), "{}", said(&file));
        chown(&file, Some(0), None).unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(said(&file).ends_with("has mode 777"), "another file could be put there: {}", said(&file));
        fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::lchown(&link, Some(7), None).unwrap();
        assert!(said(&link).ends_with("/link belongs to user 7"), "{}", said(&link));
        let first = folder.path().join("first");
        symlink("./link", &first).unwrap();
        assert!(said(&first).ends_with("/link belongs to user 7"), "a link between: {}", said(&first));
        fs::remove_file(&link).unwrap();
        symlink("first", &link).unwrap();
        assert!(said(&first).contains("Too many levels"), "{}", said(&first));
        assert!(said(&folder.path().join("none")).contains("No such file"));
        // From another directory this would be another file.
        assert!(said(file.strip_prefix("/").unwrap()).ends_with("/baton does not begin with /"));
        // As in /tmp.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
        assert!(
            said(&file).ends_with("/baton is in a directory in which others may give files names"),
            "{}",
            said(&file)
        );
        let inside = folder.path().join("inside");
        fs::create_dir(&inside).unwrap();
        fs::set_permissions(&inside, Permissions::from_mode(0o755)).unwrap();
        fs::write(inside.join("baton"), "").unwrap();
        assert_eq!(said(&inside.join("baton")), "");
        let link = folder.path().join("..data");
        symlink("inside", &link).unwrap();
        assert_eq!(said(&link.join("baton")), "");
        fs::hard_link(&link, folder.path().join("again")).unwrap();
        let linked = said(&folder.path().join("again/baton"));
        assert!(
            linked.contains("/again has 2 names"),
            "another link of root's, by a name that others gave it: {linked}"
        );
    }

    /// Regression: a link of another service's user had root's file read, and its first line shown.
    #[test]
    fn the_right_to_read_opens_what_root_and_the_file_s_owner_lead_to_and_nothing_else() {
        use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities, set_thread_uid};
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let directory = |name: &str, uid, mode| {
            fs::create_dir(at(name)).unwrap();
            chown(at(name), Some(uid), None).unwrap();
            fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
        };
        let file = |name: &str, uid| {
            fs::write(at(name), name).unwrap();
            fs::set_permissions(at(name), Permissions::from_mode(0o600)).unwrap();
            chown(at(name), Some(uid), None).unwrap();
        };
        let link = |to: &str, name: &str, uid| {
            symlink(to, at(name)).unwrap();
            std::os::unix::fs::lchown(at(name), Some(uid), None).unwrap();
        };
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        directory("root", 0, 0o755);
        file("root/secret", 0);
        directory("deploy", 8, 0o755);
        file("deploy/list", 8);
        link("../root/secret", "deploy/link", 8);
        link("../root/secret", "deploy/of-root", 0);
        fs::hard_link(at("root/secret"), at("deploy/hard")).unwrap();
        link("deploy/list", "root/list", 0);
        fs::remove_file(at("root/list")).unwrap();
        link("../deploy/list", "root/list", 0);
        link("root/secret", "of-8", 8);
        directory("own", 7, 0o755);
        link("../root/secret", "own/link", 7);
        directory("all", 0, 0o1777);
        fs::hard_link(at("root/secret"), at("all/hard")).unwrap();
        file("all/secret", 0);
        directory("secret", 0, 0o1777);
        directory("secret/..2026", 0, 0o755);
        file("secret/..2026/token", 0);
        link("..2026", "secret/..data", 0);
        link("..data/token", "secret/token", 0);
        let opens = [
            ("root/secret", true),
            ("deploy/list", true),
            ("root/list", true),
            ("secret/token", true),
            ("deploy/link", false),
            ("deploy/of-root", false),
            ("deploy/hard", false),
            ("of-8", false),
            ("own/link", false),
            ("all/hard", false),
            ("all/secret", false),
        ];
        let paths = opens.map(|(name, _)| at(name));
        // Rights belong to threads.
        let opened = std::thread::spawn(move || {
            set_keep_capabilities(true).unwrap();
            set_thread_uid(rustix::process::Uid::from_raw(7)).unwrap();
            let only = CapabilitySet::DAC_READ_SEARCH;
            let sets = CapabilitySets { effective: only, permitted: only, inheritable: CapabilitySet::empty() };
            set_capabilities(None, sets).unwrap();
            let folder = open_as_led_to(paths[0].parent().unwrap()).map(drop).map_err(|error| error.to_string());
            let written = only_others_write(&paths[0]).is_ok();
            (paths.map(|path| open_as_led_to(&path).map(drop).map_err(|error| error.to_string())), folder, written)
        });
        let (opened, of_folder, written) = opened.join().unwrap();
        for ((name, is_opened), said) in opens.iter().zip(opened) {
            assert_eq!(said.is_ok(), *is_opened, "{name}: {said:?}");
        }
        assert!(of_folder.as_ref().is_err_and(|it| it.ends_with(" is no regular file")), "{of_folder:?}");
        assert!(written, "root alone writes it");
    }

    #[test]
    fn a_configuration_in_one_s_own_user_s_folder_is_not_of_others() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let own = folder.path().join("own");
        fs::create_dir(&own).unwrap();
        fs::write(own.join("file"), "").unwrap();
        chown(&own, Some(7), None).unwrap();
        let tried = std::thread::spawn(move || {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(7)).unwrap();
            only_others_write(&own.join("file")).is_ok()
        });
        assert!(!tried.join().unwrap());
    }
}
