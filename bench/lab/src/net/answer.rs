//! What a client hears.

use std::{
    fmt,
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
};

/// What became of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A server answered.
    Reply {
        /// The name of the server's host.
        backend: String,
        /// The client, as the server saw it.
        source: SocketAddr,
    },
    /// The port is closed, and somebody said so: a TCP reset or an ICMP port unreachable.
    Refused,
    /// Nothing came back within the time a client waits.
    Timeout,
    /// Somebody said that there is no way to it (or none allowed), or there is no route.
    Unreachable,
    /// The connection was there and then was not.
    Reset,
    /// Something else, in words.
    Other(String),
}

impl Answer {
    /// The name of the server's host, if one answered.
    pub fn backend(&self) -> Option<&str> {
        match self {
            Self::Reply { backend, .. } => Some(backend),
            _ => None,
        }
    }

    /// The client's address as the server saw it, if one answered.
    pub fn source(&self) -> Option<IpAddr> {
        match self {
            Self::Reply { source, .. } => Some(source.ip()),
            _ => None,
        }
    }

    /// Reads what a server wrote.
    pub(super) fn parse(line: &[u8]) -> Self {
        let reply = str::from_utf8(line).ok().and_then(|line| {
            let (backend, source) = line.strip_suffix('\n')?.split_once(' ')?;
            Some(Self::Reply {
                backend: backend.into(),
                source: source.parse().ok()?,
            })
        });
        reply.unwrap_or_else(|| Self::Other(format!("`{}`", line.escape_ascii())))
    }
}

impl From<io::Error> for Answer {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionRefused => Self::Refused,
            // A timeout on a socket is EAGAIN, one of TCP itself ETIMEDOUT.
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Self::Timeout,
            ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::PermissionDenied => Self::Unreachable,
            ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof => Self::Reset,
            _ => Self::Other(error.to_string()),
        }
    }
}

/// `pod1/10.244.1.2:40000`, `refused`, and so on.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reply { backend, source } => write!(f, "{backend}/{source}"),
            Self::Refused => f.write_str("refused"),
            Self::Timeout => f.write_str("timeout"),
            Self::Unreachable => f.write_str("unreachable"),
            Self::Reset => f.write_str("reset"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_who_it_is_and_whom_it_saw() {
        let answer = Answer::parse(b"pod1 [fd00::9]:4000\n");
        assert_eq!(answer.backend(), Some("pod1"));
        assert_eq!(answer.source(), Some("fd00::9".parse().unwrap()));
        assert_eq!(answer.to_string(), "pod1/[fd00::9]:4000");
    }

    #[test]
    fn anything_else_is_shown_as_it_is() {
        for line in ["", "pod1\n", "pod1 10.0.0.1:1", "pod1 nowhere\n"] {
            assert!(
                matches!(Answer::parse(line.as_bytes()), Answer::Other(_)),
                "{line}"
            );
        }
        let refused = io::Error::from(ErrorKind::ConnectionRefused);
        assert_eq!(Answer::from(refused), Answer::Refused);
    }
}
