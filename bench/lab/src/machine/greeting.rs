//! The guest's first message.

use std::time::Duration;

/// The guest's report about itself when it accepts jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// The kernel's release, as `uname -r` prints it.
    pub(crate) release: String,
    /// The cost of a system call in the guest.
    pub(crate) syscall_cost: Duration,
}

impl Greeting {
    /// Returns the nanoseconds, a space and the release.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let nanoseconds = self.syscall_cost.as_nanos();
        format!("{nanoseconds} {}", self.release).into_bytes()
    }

    /// The inverse of [`encode`](Self::encode).
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (nanoseconds, release) = str::from_utf8(bytes).ok()?.split_once(' ')?;
        Some(Self {
            release: release.into(),
            syscall_cost: Duration::from_nanos(nanoseconds.parse().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decoded_greeting_equals_the_encoded_one() {
        let greeting = Greeting {
            release: "7.2.12 (lab)".into(),
            syscall_cost: Duration::from_nanos(23_456),
        };
        assert_eq!(Greeting::decode(&greeting.encode()), Some(greeting));
        assert_eq!(Greeting::decode(b"7.2.12"), None);
    }
}
