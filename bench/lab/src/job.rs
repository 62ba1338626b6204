//! A command to run in a guest.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

use anyhow::{Context, Result, bail};

/// A command with its environment and working directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The program and its arguments, at least one.
    pub argv: Vec<OsString>,
    /// The whole environment; nothing else is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// The working directory: the same path on the host and in the guest.
    pub cwd: OsString,
    /// The size of the terminal; `None`: three pipes instead of a terminal.
    pub terminal: Option<TerminalSize>,
}

/// Rows and columns of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    /// Lines of text.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

impl Job {
    /// Returns a job with this process's environment and working directory.
    ///
    /// # Errors
    ///
    /// If the command is empty or the working directory was deleted.
    pub fn here(argv: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Self> {
        let argv: Vec<OsString> = argv.into_iter().map(Into::into).collect();
        if argv.is_empty() {
            bail!("no command given");
        }
        let cwd = env::current_dir().context("finding the working directory")?;
        Ok(Self {
            argv,
            env: env::vars_os().collect(),
            cwd: cwd.into_os_string(),
            terminal: None,
        })
    }

    /// Encodes the job as strings that end with NUL.
    ///
    /// They are: the directory, the terminal's size or an empty string, the number of arguments, the
    /// arguments, and the names and values of the environment. None of them can contain a NUL.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |text: &[u8]| {
            out.extend(text);
            out.push(0);
        };
        put(self.cwd.as_bytes());
        put(&self.terminal.map(TerminalSize::encode).unwrap_or_default());
        put(self.argv.len().to_string().as_bytes());
        for argument in &self.argv {
            put(argument.as_bytes());
        }
        for (name, value) in &self.env {
            put(name.as_bytes());
            put(value.as_bytes());
        }
        out
    }

    /// The inverse of [`encode`](Self::encode).
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut fields = bytes
            .strip_suffix(&[0])
            .context("a job that is cut short")?
            .split(|&byte| byte == 0);
        let mut next = || fields.next().context("a job that is cut short");

        let cwd = owned(next()?);
        let terminal = match next()? {
            [] => None,
            size => Some(TerminalSize::decode(size).context("a terminal without a size")?),
        };
        let count: usize = str::from_utf8(next()?)?.parse()?;
        let argv = (0..count)
            .map(|_| next().map(owned))
            .collect::<Result<Vec<_>>>()?;
        if argv.is_empty() {
            bail!("a job without a command");
        }
        let mut env = Vec::new();
        while let Some(name) = fields.next() {
            let value = fields.next().context("a variable without a value")?;
            env.push((owned(name), owned(value)));
        }
        Ok(Self {
            argv,
            env,
            cwd,
            terminal,
        })
    }

    /// Returns the value of `name` in the job's environment.
    pub(crate) fn var(&self, name: &str) -> Option<&OsStr> {
        let found = self.env.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_os_str())
    }
}

impl TerminalSize {
    /// Returns eight hexadecimal digits, rows first. No byte is NUL.
    pub(crate) fn encode(self) -> Vec<u8> {
        format!("{:04x}{:04x}", self.rows, self.columns).into_bytes()
    }

    /// The inverse of [`encode`](Self::encode).
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (rows, columns) = str::from_utf8(bytes).ok()?.split_at_checked(4)?;
        Some(Self {
            rows: u16::from_str_radix(rows, 16).ok()?,
            columns: u16::from_str_radix(columns, 16).ok()?,
        })
    }
}

fn owned(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decoded_job_equals_the_encoded_one() {
        let job = Job {
            argv: vec!["printf".into(), String::new().into(), owned(b"\xff\r\n")],
            env: vec![("A".into(), "".into()), ("B".into(), "x=y".into())],
            cwd: "/".into(),
            terminal: Some(TerminalSize {
                rows: 24,
                columns: 256,
            }),
        };
        assert_eq!(Job::decode(&job.encode()).unwrap(), job);

        let plain = Job {
            terminal: None,
            env: vec![],
            ..job
        };
        assert_eq!(Job::decode(&plain.encode()).unwrap(), plain);
    }

    #[test]
    fn a_truncated_job_is_an_error() {
        assert!(Job::decode(b"").is_err());
        assert!(Job::decode(b"/\0\x002\0ls\0").is_err());
        assert!(Job::decode(b"/\0\x001\0ls\0NAME\0").is_err());
    }
}
