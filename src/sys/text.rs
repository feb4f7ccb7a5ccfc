//! The pages of this process's code.

#![allow(unsafe_code)]

use std::fs;
use std::io;

/// Removes the pages of all code from this process's memory, as counted in VmRSS (proc_pid_status(5)), and returns the length of the mappings in bytes. The
/// next use of a page maps it anew from the page cache, so that only what is used stays. madvise(2), MADV_DONTNEED.
///
/// # Errors
///
/// /proc cannot be read, or the pages are locked (mlockall(2)).
pub(crate) fn forget_unused() -> io::Result<usize> {
    let mut length = 0;
    for mapping in fs::read_to_string("/proc/self/maps")?.lines().filter_map(code) {
        let (start, end) = mapping;
        // SAFETY: the mapping is of a file, and nobody may write to it, so that each page has what the file has there: to map a page
        // anew gives the same bytes. The kernel refuses a range that is no mapping any more.
        match unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) } {
            0 => length += end - start,
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(length)
}

/// The addresses of a line of proc_pid_maps(5), if it is code of a file: `r-xp`, and a path. Data that is only read has relocations in
/// it, which no file has.
fn code(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_code = fields.next()? == "r-xp" && fields.nth(3).is_some_and(|path| path.starts_with('/'));
    let address = |hex| usize::from_str_radix(hex, 16).ok();
    is_code.then_some((address(start)?, address(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the code of files, in kB.
    fn resident() -> u64 {
        let mut is_code = false;
        let mut sum = 0;
        for line in fs::read_to_string("/proc/self/smaps").unwrap().lines() {
            match line.strip_prefix("Rss:") {
                Some(rss) if is_code => sum += rss.trim().trim_end_matches(" kB").parse::<u64>().unwrap(),
                Some(_) => {}
                None if line.split(' ').next().is_some_and(|first| first.contains('-')) => {
                    is_code = code(line).is_some()
                }
                None => {}
            }
        }
        sum
    }

    #[test]
    fn code_that_is_forgotten_is_not_resident_and_goes_on() {
        for (start, end) in fs::read_to_string("/proc/self/maps").unwrap().lines().filter_map(code) {
            // SAFETY: the pages are mapped, as a use of each would do.
            let done = unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_POPULATE_READ) };
            assert_eq!(done, 0, "{}", io::Error::last_os_error());
        }
        let before = resident();
        let length = forget_unused().unwrap();
        let after = resident();
        assert!(length > 1 << 20, "{length} bytes of code");
        assert!(after < before / 2, "{before} kB, then {after} kB");
        // Whatever ran before runs again.
        assert!(forget_unused().unwrap() == length && resident() > 0);
    }

    #[test]
    fn only_code_of_files_is_code() {
        let line = |mode: &str, path: &str| format!("55d0c8a00000-55d0c8a01000 {mode} 00001000 fe:00 1234   {path}");
        assert_eq!(code(&line("r-xp", "/usr/bin/baton")), Some((0x55d0c8a00000, 0x55d0c8a01000)));
        assert_eq!(code(&line("r-xp", "/usr/bin/baton (deleted)")).map(|(start, _)| start), Some(0x55d0c8a00000));
        for (mode, path) in
            [("r--p", "/usr/bin/baton"), ("rw-p", "/usr/bin/baton"), ("r-xp", "[vdso]"), ("rwxp", "/x"), ("r-xp", "")]
        {
            assert_eq!(code(&line(mode, path)), None, "{mode} {path}");
        }
        assert_eq!(code("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0   [vsyscall]"), None);
    }
}
