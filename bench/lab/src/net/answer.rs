//! The result of a client's question.

use std::{
    fmt,
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
};

/// The result of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A server answered.
    Reply {
        /// The name of the server's host.
        backend: String,
        /// The client, as the server saw it.
        source: SocketAddr,
    },
    /// The port is closed: a TCP reset or an ICMP port unreachable arrived.
    Refused,
    /// No answer arrived within the client's time limit.
    Timeout,
    /// There is no route, or ICMP reported that the address is unreachable or prohibited.
    Unreachable,
    /// The connection was closed after it was established.
    Reset,
    /// Another error or an unexpected answer, as text.
    Other(String),
}

impl Answer {
    /// Returns the name of the server's host, if a server answered.
    pub fn backend(&self) -> Option<&str> {
        match self {
            Self::Reply { backend, .. } => Some(backend),
            _ => None,
        }
    }

    /// Returns the client's address as the server saw it, if a server answered.
    pub fn source(&self) -> Option<IpAddr> {
        match self {
            Self::Reply { source, .. } => Some(source.ip()),
            _ => None,
        }
    }

    /// Parses a server's line.
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
            // A timeout of a socket is EAGAIN, a timeout of TCP itself is ETIMEDOUT.
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

/// Formats as `pod1/10.244.1.2:40000`, `refused`, `timeout`, ...
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
    fn an_answer_names_the_server_and_the_client() {
        let answer = Answer::parse(b"pod1 [fd00::9]:4000\n");
        assert_eq!(answer.backend(), Some("pod1"));
        assert_eq!(answer.source(), Some("fd00::9".parse().unwrap()));
        assert_eq!(answer.to_string(), "pod1/[fd00::9]:4000");
    }

    #[test]
    fn an_unexpected_line_is_shown_unchanged() {
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
