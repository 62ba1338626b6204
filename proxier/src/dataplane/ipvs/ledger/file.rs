//! The ledger's file: one line of JSON per record, appended.
//!
//! The file is under `/run`, so a reboot deletes it together with the kernel's tables. A record is
//! written before its virtual server is created: a record without a virtual server is harmless, but the
//! next process would treat a virtual server without a record as foreign. If the process is killed in the
//! middle of a line, only that line is lost.
//!
//! The file begins with an empty line, so that a record can be missing from no file unnoticed: if one cannot be written,
//! because the file system is full, the [`MARK`] overwrites a byte that the file has already.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use tracing::Level;

use super::record::Record;
use crate::dataplane::Failure;
use crate::util::clock;
use crate::util::conditions::{Coverage, LastingConditions};

/// The number of lines above twice the needed ones at which the file is rewritten.
///
/// Without it, the file of a small cluster would be rewritten after every few changes.
const SLACK: usize = 1_000;

/// The number of records that are encoded at a time, so that the buffer stays below 64 KiB.
pub(super) const RECORDS_AT_A_TIME: usize = 400;

/// The length of a typical record. Only the first size of the buffer depends on it.
const RECORD_LENGTH: usize = 160;

/// The permissions of new files: the key of the firewall marks must stay unknown to others.
const OWNER_ONLY: u32 = 0o600;

/// The begin of a file: room for [`MARK`]. Versions that do not know it skip empty lines, and warn of a mark.
const BEGIN: &[u8] = b"\n\n";

/// The first line of a file that lacks records.
const MARK: &[u8] = b"?";

/// The file that stores a [`super::Ledger`].
#[derive(Debug)]
pub struct LedgerFile {
    path: PathBuf,
    /// The open file, for appending; `None` before the first append and after a rewrite.
    open: Option<File>,
    /// The identity of the file after the last read or write; `None` if there was no file.
    last: Option<Identity>,
    /// The number of lines, including those that later lines revoke.
    lines: usize,
    /// Whether the file lacks records: an append failed, or another program changed the file.
    is_behind: bool,
    /// Whether the last read found records, could parse each of them, and the writer lacked none.
    was_whole: bool,
    /// Whether the file has room for [`MARK`].
    has_room: bool,
    /// The changes by other programs.
    changes: LastingConditions,
}

/// The identity of a file and its length.
///
/// Another file at the same path differs, and so does the same file after another program's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    length: u64,
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
        }
    }
}

/// The error of reading or writing the ledger's file.
#[derive(Debug, thiserror::Error)]
#[error("ledger {}: {source}", .path.display())]
pub struct Error {
    path: PathBuf,
    source: io::Error,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            errno: Errno::from_io_error(&error.source),
            message: error.to_string(),
        }
    }
}

impl LedgerFile {
    /// Returns the file at `path`, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            open: None,
            last: None,
            lines: 0,
            is_behind: false,
            was_whole: false,
            has_room: false,
            changes: LastingConditions::default(),
        }
    }

    /// Reads all records; there are none if the file does not exist.
    ///
    /// Skips a line that cannot be parsed, with a warning: its writer was killed while it wrote the line.
    /// Little is lost: the virtual server of such a line was not created yet, and drains and rules are
    /// recognised in the kernel.
    pub(super) fn read(&mut self) -> Result<Vec<Record>, Error> {
        let text = match self.read_text() {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(self.error(source)),
        };
        let path = self.path.display();
        // A file system that is read-only now may have been so for the last process.
        let is_writable = open_itself(File::options().append(true), &self.path).is_ok();
        self.was_whole = !text.is_empty() && is_writable;
        self.has_room = text.starts_with(BEGIN);
        let mut records = Vec::new();
        let mut first_skipped = None;
        let mut skipped = 0;
        let lines = text.split(|&byte| byte == b'\n');
        for (number, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
            self.lines += 1;
            if line == MARK {
                self.was_whole = false;
                tracing::warn!("ledger {path}: the last process could not write all records");
                continue;
            }
            match serde_json::from_slice(line) {
                Ok(record) => records.push(record),
                Err(error) => {
                    skipped += 1;
                    first_skipped.get_or_insert((number + 1, error));
                }
            }
        }
        if let Some((line, error)) = first_skipped {
            self.was_whole = false;
            tracing::warn!("ledger {path}: line {line}: {error}; lines skipped: {skipped}");
        }
        Ok(records)
    }

    /// Returns whether the last read found records, could parse each of them, and the writer lacked none.
    pub(super) fn was_whole(&self) -> bool {
        self.was_whole
    }

    fn read_text(&mut self) -> io::Result<Vec<u8>> {
        let mut file = open_itself(File::options().read(true), &self.path)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        self.last = Some(Identity::of(&file.metadata()?));
        Ok(text)
    }

    /// Returns whether the file needs a rewrite, because the last [`LedgerFile::append`] failed, or
    /// [`LedgerFile::check`] found another program's change.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Checks whether another program removed or replaced the file, or changed its length.
    ///
    /// Appending to a deleted file that is still open succeeds, but the next process would not find
    /// the records.
    pub(super) fn check(&mut self) {
        // If no file was read or written, there is none that another program could have changed.
        let Some(last) = self.last else {
            return;
        };
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| Identity::of(&found) == last) || self.is_behind {
            return;
        }
        let text = format!(
            "ledger {}: another program removed or changed it; writing a new file",
            self.path.display()
        );
        let kind = "changes of the ledger by other programs";
        (self.changes).add(
            Coverage::Events,
            Level::WARN,
            kind,
            text,
            clock::since_boot(),
        );
        self.is_behind = true;
    }

    /// Returns whether later lines revoke most lines, so that `needed` lines suffice.
    pub(super) fn is_worth_rewriting(&self, needed: usize) -> bool {
        self.lines > 2 * needed + SLACK
    }

    /// Appends `records`. Costs two system calls per [`RECORDS_AT_A_TIME`].
    pub(super) fn append(&mut self, records: &[Record]) -> Result<(), Error> {
        let appended = self.try_append(records);
        self.is_behind = appended.is_err();
        if self.is_behind && self.has_room {
            // On a read-only file system it fails, too. Then the next process sees that.
            _ = self.mark();
        }
        appended.map_err(|source| self.error(source))
    }

    /// Marks the file as one that lacks records.
    fn mark(&self) -> io::Result<()> {
        // Not the file that is open for appending, which ignores positions.
        let file = open_itself(File::options().write(true), &self.path)?;
        file.write_all_at(MARK, 0)
    }

    /// Makes the next flush replace a file that was read and is not whole.
    pub(super) fn renew(&mut self) {
        self.is_behind |= self.lines > 0 && !self.was_whole;
        self.was_whole = true;
    }

    fn try_append(&mut self, records: &[Record]) -> io::Result<()> {
        let most = records.len().min(RECORDS_AT_A_TIME);
        let mut text = Vec::with_capacity(most * RECORD_LENGTH);
        for records in records.chunks(RECORDS_AT_A_TIME) {
            text.clear();
            encode(records, &mut text)?;
            let file = self.open()?;
            // Not synced to the disk: the records need to survive the process, but not a reboot.
            file.write_all(&text)?;
            let written = Identity::of(&file.metadata()?);
            self.last = Some(written);
            self.lines += records.len();
        }
        Ok(())
    }

    /// Replaces the file by one with only `records`, atomically.
    pub(super) fn rewrite(&mut self, records: &[Record]) -> Result<(), Error> {
        let mut text = BEGIN.to_vec();
        let replaced = encode(records, &mut text).and_then(|()| replace(&self.path, &text));
        self.last = Some(replaced.map_err(|source| self.error(source))?);
        // The open file is the replaced one.
        self.open = None;
        self.lines = records.len();
        self.is_behind = false;
        self.has_room = true;
        Ok(())
    }

    /// Removes the file, which need not exist.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(self) -> Result<(), Error> {
        match std::fs::remove_file(&self.path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(self.error(source)),
            _ => Ok(()),
        }
    }

    /// Returns the file, open for appending.
    ///
    /// The last line of an earlier process may be incomplete, so a newly opened file gets a line end; an empty one
    /// [`BEGIN`].
    fn open(&mut self) -> io::Result<&mut File> {
        let file = match self.open.take() {
            Some(file) => file,
            None => {
                create_directory(&self.path)?;
                let mut options = File::options();
                let mut file = open_itself(options.create(true).append(true), &self.path)?;
                if self.lines > 0 {
                    file.write_all(b"\n")?;
                } else if file.metadata()?.len() == 0 {
                    file.write_all(BEGIN)?;
                    self.has_room = true;
                }
                file
            }
        };
        Ok(self.open.insert(file))
    }

    fn error(&self, source: io::Error) -> Error {
        Error {
            path: self.path.clone(),
            source,
        }
    }
}

fn encode(records: &[Record], text: &mut Vec<u8>) -> io::Result<()> {
    for record in records {
        serde_json::to_writer(&mut *text, record)?;
        text.push(b'\n');
    }
    Ok(())
}

/// Creates the directory of `path` if it does not exist.
pub(super) fn create_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)
}

/// Opens `path` itself: no file to which a symbolic link leads, and without a wait for the writer of a pipe.
///
/// In a directory that other users may write, a link could lead root to any file.
pub(super) fn open_itself(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let options = options.mode(OWNER_ONLY);
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => io::Error::other("it is a symbolic link, which is not followed"),
        _ => error,
    })
}

/// Writes a new file beside `path` and renames it to `path`. Returns its identity.
fn replace(path: &Path, text: &[u8]) -> io::Result<Identity> {
    create_directory(path)?;
    let new = path.with_extension("new");
    // What an earlier process left, or a link that another program made.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(OWNER_ONLY)
        .open(&new)?;
    file.write_all(text)?;
    // An error of a delayed write must appear before the rename replaces the complete old file.
    file.sync_all()?;
    std::fs::rename(new, path)?;
    Ok(Identity::of(&file.metadata()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A record as version 0.1 writes it; files of that version must stay readable.
    const LINE: &str =
        r#"{"own":{"server":{"protocol":6,"address":"10.96.0.1","port":80},"service":"a/b"}}"#;

    #[test]
    fn a_file_that_is_removed_replaced_or_truncated_is_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let damages: [fn(&Path); 3] = [
            |path| std::fs::remove_file(path).unwrap(),
            |path| {
                std::fs::write(path.with_extension("other"), format!("{LINE}\n")).unwrap();
                std::fs::rename(path.with_extension("other"), path).unwrap();
            },
            |path| std::fs::write(path, "").unwrap(),
        ];
        for damage in damages {
            std::fs::write(&path, format!("{LINE}\n")).unwrap();
            let mut file = LedgerFile::new(&path);
            let records = file.read().unwrap();
            let lose = |file: &mut LedgerFile| {
                file.check();
                assert!(!file.is_behind());
                damage(&path);
                file.check();
                assert!(file.is_behind());
                file.rewrite(&records).unwrap();
            };
            lose(&mut file);
            lose(&mut file);
            file.append(&records).unwrap();
            lose(&mut file);
        }
    }

    #[test]
    fn symbolic_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let victim = directory.path().join("victim");
        let line = format!("{LINE}\n");
        let text = format!("\n\n{line}");
        std::fs::write(&victim, &line).unwrap();
        symlink(&victim, &path).unwrap();
        symlink(&victim, path.with_extension("new")).unwrap();
        let mut file = LedgerFile::new(&path);
        let error = file.read().unwrap_err().to_string();
        assert!(
            error.ends_with("it is a symbolic link, which is not followed"),
            "{error}"
        );
        let records = LedgerFile::new(&victim).read().unwrap();
        file.append(&records).unwrap_err();
        // A rewrite replaces both links.
        file.rewrite(&[]).unwrap();
        file.append(&records).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), line);
    }

    /// A full file system has no room for another byte, and permits to overwrite one.
    #[test]
    fn a_file_that_lacks_records_says_so_until_it_is_written_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let records = {
            std::fs::write(&path, format!("{LINE}\n")).unwrap();
            LedgerFile::new(&path).read().unwrap()
        };
        std::fs::remove_file(&path).unwrap();
        let was_whole = |count: usize| {
            let mut file = LedgerFile::new(&path);
            assert_eq!(file.read().unwrap().len(), count);
            file.was_whole()
        };
        let mut file = LedgerFile::new(&path);
        file.append(&records).unwrap();
        assert!(was_whole(1));
        // Linux' device for this purpose.
        file.open = Some(File::options().append(true).open("/dev/full").unwrap());
        let error = file.append(&records).unwrap_err();
        assert!(error.to_string().contains("No space left"), "{error}");
        assert!(!was_whole(1));
        let mut next = LedgerFile::new(&path);
        let read = next.read().unwrap();
        next.append(&records).unwrap();
        assert!(!was_whole(2), "further records replace no lost ones");
        next.renew();
        assert!(next.is_behind());
        next.rewrite(&read).unwrap();
        assert!(was_whole(1));
    }

    #[test]
    fn an_incomplete_line_is_skipped_and_all_others_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        std::fs::write(&path, format!("{LINE}\n{}", &LINE[..20])).unwrap();
        let mut file = LedgerFile::new(&path);
        let records = file.read().unwrap();
        assert_eq!(records.len(), 1);
        file.append(&records).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{LINE}\n{}\n{LINE}\n", &LINE[..20]));
        assert_eq!(LedgerFile::new(&path).read().unwrap().len(), 2);
    }
}
