//! The output of a test in the guest.

/// One of the two streams of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// The lines of both streams in the order in which they arrived, each of them whole.
///
/// The streams arrive separately and in pieces: a line of one may arrive between two pieces of a line of the other,
/// and then libtest's summary would not be found.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    lines: Vec<u8>,
    /// The last line of each stream, without its end.
    begun: [Vec<u8>; 2],
}

impl Transcript {
    /// Adds the next bytes of a stream.
    pub(super) fn add(&mut self, stream: Stream, bytes: &[u8]) {
        let begun = &mut self.begun[stream as usize];
        begun.extend(bytes);
        if let Some(end) = begun.iter().rposition(|byte| *byte == b'\n') {
            self.lines.extend(begun.drain(..=end));
        }
    }

    /// Returns all lines, and then those without an end.
    pub(super) fn text(&self) -> String {
        let [stdout, stderr] = &self.begun;
        String::from_utf8_lossy(&[&self.lines[..], stdout, stderr].concat()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_whole_if_the_other_stream_arrives_meanwhile() {
        let mut transcript = Transcript::default();
        transcript.add(Stream::Stdout, b"running 1 test\n\ntest result: ");
        transcript.add(Stream::Stderr, b"a system call takes 12 us\nlast ");
        transcript.add(Stream::Stdout, b"ok. 1 passed;\nmore");
        transcript.add(Stream::Stderr, b"words");
        assert_eq!(
            transcript.text(),
            "running 1 test\n\na system call takes 12 us\ntest result: ok. 1 passed;\nmorelast words"
        );
    }
}
