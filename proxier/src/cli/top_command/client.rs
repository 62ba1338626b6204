//! Requests to the process that serves this node.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;

use crate::observe::overview::Query;
use crate::observe::overview::model::Overview;

/// How long an answer may take. The process waits 2 s for a round.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest answer, in bytes: some 1,000 endpoints with long names.
const MAX_ANSWER: u64 = 16 << 20;

/// Asks through the socket of the process.
#[derive(Debug)]
pub(super) struct Client {
    socket: PathBuf,
}

impl Client {
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Returns the view.
    pub(super) fn view(&self, query: &Query) -> anyhow::Result<Overview> {
        let body = self.json(query)?;
        serde_json::from_str(&body)
            .context("the answer of the process is of another version of this program")
    }

    /// Returns the view as JSON.
    pub(super) fn json(&self, query: &Query) -> anyhow::Result<String> {
        let answer = self.ask(&format!("/status.json?{query}"));
        let answer = answer.map_err(|error| self.explain(error))?;
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .context("an answer without a head")?;
        let status = head.lines().next().unwrap_or_default();
        anyhow::ensure!(status.ends_with("200 OK"), "the process answers {status:?}");
        Ok(body.to_owned())
    }

    fn ask(&self, target: &str) -> io::Result<String> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Returns the error with what the user can do.
    fn explain(&self, error: io::Error) -> anyhow::Error {
        let path = self.socket.display();
        let hint = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "no process of `ipvs-proxier run` serves with this --state-file; `ipvs-proxier status` shows the kernel"
            }
            io::ErrorKind::PermissionDenied => "only root may look",
            _ => "the process does not answer",
        };
        anyhow::Error::from(error).context(format!("{path}: {hint}"))
    }
}
