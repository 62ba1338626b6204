//! The kernel's console, shown only in errors.

use std::{
    io::{self, PipeWriter, Read},
    sync::{Arc, Mutex},
    thread,
};

/// The last 64 KiB of the kernel's console output.
#[derive(Debug, Clone)]
pub(super) struct Log {
    text: Arc<Mutex<Vec<u8>>>,
}

impl Log {
    /// Returns a log and the writing end of its pipe, which is for the kernel.
    pub(super) fn open() -> io::Result<(Self, PipeWriter)> {
        let (mut reader, writer) = io::pipe()?;
        let log = Self {
            text: Arc::default(),
        };
        let text = Arc::clone(&log.text);
        thread::Builder::new()
            .name("lab-log".into())
            .spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(length @ 1..) = reader.read(&mut piece) {
                    let mut text = super::lock(&text);
                    text.extend_from_slice(&piece[..length]);
                    let surplus = text.len().saturating_sub(KEPT);
                    text.drain(..surplus);
                }
            })?;
        Ok((log, writer))
    }

    /// Returns the last lines.
    pub(super) fn tail(&self) -> String {
        last_lines(&super::lock(&self.text))
    }
}

/// Returns the last [`SHOWN`] lines of console output, indented and without carriage returns.
fn last_lines(console: &[u8]) -> String {
    let text = String::from_utf8_lossy(console).replace('\r', "");
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.is_empty() && !USUAL.iter().any(|usual| line.contains(usual)))
        .collect();
    if lines.is_empty() {
        return "  (none)".into();
    }
    let shown = &lines[lines.len().saturating_sub(SHOWN)..];
    let indented: Vec<String> = shown.iter().map(|line| format!("  {line}")).collect();
    indented.join("\n")
}

/// Messages of every boot: the lab gives the kernel no directory for a management socket and no disk.
const USUAL: [&str; 4] = [
    "make_umid",
    "remove_umid_dir",
    "Failed to initialize umid",
    "Failed to initialize ubd device",
];
/// Bytes of console output in memory.
const KEPT: usize = 64 * 1024;
/// Lines in an error, enough for a panic with its call trace.
const SHOWN: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_forty_lines_without_the_usual_messages() {
        let console: String = (0..100).map(|line| format!("line {line}\r\n\n")).collect();
        let shown = last_lines(console.as_bytes());
        assert!(shown.starts_with("  line 60\n"), "{shown}");
        assert!(shown.ends_with("  line 99"), "{shown}");
        assert_eq!(last_lines(b""), "  (none)");
        assert_eq!(last_lines(b"make_umid - mkstemp failed\r\n"), "  (none)");
    }
}
