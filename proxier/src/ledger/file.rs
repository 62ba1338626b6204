//! The ledger's file: one line of JSON per record, appended.
//!
//! It lies under `/run`, which lives as long as the kernel's tables do. A record is written before
//! the virtual server that it names is created: a record without a virtual server does no harm, a
//! virtual server without a record would be foreign to the next process. A process that is killed
//! in the middle of a line loses that line only.

use std::fs::{File, Metadata};
use std::io::{self, Read as _, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::record::Record;
use crate::dataplane::Failure;

/// The file is rewritten when it has this many lines more than twice the lines it needs.
const SLACK: usize = 1_000;

/// How many records are encoded at a time, so that memory does not grow with their number.
const RECORDS_AT_A_TIME: usize = 1_000;

/// The file in which a [`super::Ledger`] is kept.
#[derive(Debug)]
pub struct LedgerFile {
    path: PathBuf,
    /// Open for appending since the first write.
    open: Option<File>,
    /// The file that was read or written last, as it was then; `None` if there was none.
    last: Option<Identity>,
    lines: usize,
    /// Whether it lacks records: they could not be appended, or the file was lost.
    is_behind: bool,
}

/// What tells a file from another one at its path, and from itself before it was cut.
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

/// Why the ledger could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("ledger {}: {source}", .path.display())]
pub struct Error {
    path: PathBuf,
    source: io::Error,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            errno: rustix::io::Errno::from_io_error(&error.source),
            message: error.to_string(),
        }
    }
}

impl LedgerFile {
    /// The file at `path`, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            open: None,
            last: None,
            lines: 0,
            is_behind: false,
        }
    }

    /// Reads all records; there are none if the file does not exist.
    ///
    /// A line that cannot be parsed is skipped with a warning: its writer was killed while it wrote
    /// the line, before it programmed what the line names.
    pub(super) fn read(&mut self) -> Result<Vec<Record>, Error> {
        let text = match self.read_text() {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(self.error(source)),
        };
        let mut records = Vec::new();
        let lines = text.split(|&byte| byte == b'\n');
        for (number, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
            self.lines += 1;
            match serde_json::from_slice(line) {
                Ok(record) => records.push(record),
                Err(error) => {
                    let path = self.path.display();
                    tracing::warn!("ledger {path}: line {}: {error}; skipped", number + 1);
                }
            }
        }
        Ok(records)
    }

    fn read_text(&mut self) -> io::Result<Vec<u8>> {
        let mut file = File::open(&self.path)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        self.last = Some(Identity::of(&file.metadata()?));
        Ok(text)
    }

    /// Whether the last [`LedgerFile::append`] failed, or [`LedgerFile::check`] found the file lost:
    /// then only a rewrite makes the file complete.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Notices if the path no longer leads to the file that was read or written last, or if another
    /// program changed its length.
    ///
    /// Appending to a file without a path succeeds, and the next process would find none of it.
    pub(super) fn check(&mut self) {
        let Some(last) = self.last else {
            return;
        };
        let found = std::fs::metadata(&self.path);
        if found.is_ok_and(|found| Identity::of(&found) == last) || self.is_behind {
            return;
        }
        let path = self.path.display();
        tracing::warn!("ledger {path}: another program removed or changed it; writing it anew");
        self.is_behind = true;
    }

    /// Whether most lines were revoked by later ones, given that `needed` lines would do.
    pub(super) fn is_worth_rewriting(&self, needed: usize) -> bool {
        self.lines > 2 * needed + SLACK
    }

    /// Appends `records`: one system call per thousand.
    pub(super) fn append(&mut self, records: &[Record]) -> Result<(), Error> {
        let appended = self.try_append(records);
        self.is_behind = appended.is_err();
        appended.map_err(|source| self.error(source))
    }

    fn try_append(&mut self, records: &[Record]) -> io::Result<()> {
        let mut text = Vec::new();
        for records in records.chunks(RECORDS_AT_A_TIME) {
            text.clear();
            encode(records, &mut text)?;
            let file = self.open()?;
            file.write_all(&text)?;
            let written = Identity::of(&file.metadata()?);
            self.last = Some(written);
            self.lines += records.len();
        }
        Ok(())
    }

    /// Replaces the file by one with `records` only. A reader sees the old file or the new one.
    pub(super) fn rewrite(&mut self, records: &[Record]) -> Result<(), Error> {
        let mut text = Vec::new();
        let replaced = encode(records, &mut text).and_then(|()| replace(&self.path, &text));
        self.last = Some(replaced.map_err(|source| self.error(source))?);
        self.open = None;
        self.lines = records.len();
        self.is_behind = false;
        Ok(())
    }

    /// Removes the file, which need not exist.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(self) -> Result<(), Error> {
        match std::fs::remove_file(&self.path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(self.error(source)),
            _ => Ok(()),
        }
    }

    /// Returns the file, open for appending, with a line end after a line that its writer did not
    /// finish.
    fn open(&mut self) -> io::Result<&mut File> {
        let file = match self.open.take() {
            Some(file) => file,
            None => {
                create_directory(&self.path)?;
                let mut options = File::options();
                let mut file = options.create(true).append(true).open(&self.path)?;
                if self.lines > 0 {
                    file.write_all(b"\n")?;
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

/// Returns the identity of the new file.
fn replace(path: &Path, text: &[u8]) -> io::Result<Identity> {
    create_directory(path)?;
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(new, path)?;
    Ok(Identity::of(&file.metadata()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as version 0.1 writes it; files of that version must stay readable.
    const LINE: &str =
        r#"{"own":{"server":{"protocol":6,"address":"10.96.0.1","port":80},"service":"a/b"}}"#;

    #[test]
    fn a_file_that_is_removed_replaced_or_cut_is_behind() {
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
    fn a_torn_line_does_not_affect_other_lines() {
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
