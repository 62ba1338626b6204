//! The kernel's command line.

use std::ffi::{OsStr, OsString};

use anyhow::{Result, bail};

use super::Config;
use crate::guest;

/// Returns the arguments of the kernel process.
///
/// An option `NAME=value` that the kernel does not know becomes part of process 1's environment. The
/// options after `--` become its arguments.
pub(super) fn arguments(config: &Config) -> Result<Vec<OsString>> {
    let [program, arguments @ ..] = config.init.as_slice() else {
        bail!("no program to be process 1 of the lab");
    };
    let mut line: Vec<OsString> = vec![
        format!("mem={}", config.memory).into(),
        // The root file system is the host's, accessed with the rights of the host's user.
        "root=/dev/root".into(),
        "rootfstype=hostfs".into(),
        "rootflags=/".into(),
        "rw".into(),
        "quiet".into(),
        // A panic ends the process at once.
        "panic=-1".into(),
        // The kernel writes messages to stdout. The first serial line is stdin, a socket that carries
        // both directions.
        "con=null".into(),
        "con0=null,fd:1".into(),
        "ssl=null".into(),
        "ssl0=fd:0".into(),
        // Intercepts the guest's system calls by seccomp(2), or by ptrace(2) if the host lacks it.
        // Seccomp halves their cost (from 18 to 10 microseconds on 7.2). 6.1 ignores the option.
        "seccomp=auto".into(),
        // The number of connections that the kernel tracks. Its own choice for so little memory is 8,192.
        format!("nf_conntrack.hashsize={TRACKED_CONNECTIONS}").into(),
        // No directory can be created there, so there is no management socket and no ~/.uml.
        "uml_dir=/dev/null/".into(),
        format!("{}={}", guest::ROLE, guest::INIT).into(),
    ];
    if config.cpus > 1 {
        line.push(format!("ncpus={}", config.cpus).into());
    }
    let mut init = OsString::from("init=");
    init.push(quoted(program)?);
    line.push(init);
    if !arguments.is_empty() {
        line.push("--".into());
        for argument in arguments {
            line.push(quoted(argument)?);
        }
    }
    let length: usize = line.iter().map(|argument| argument.len() + 1).sum();
    if length > MAX_LENGTH {
        bail!("the kernel's command line would have {length} bytes, and {MAX_LENGTH} is the limit");
    }
    Ok(line)
}

/// Returns `argument` between double quotes.
///
/// The kernel splits its command line at spaces outside quotes. User-Mode Linux also takes an
/// unquoted argument of init for an option of its own if it begins like one (`debug`, `root=`).
fn quoted(argument: &OsStr) -> Result<OsString> {
    let bytes = argument.as_encoded_bytes();
    if bytes.contains(&b'"') || bytes.contains(&b'\n') {
        bail!(
            "{} contains a quote or a line break, which a kernel's command line cannot",
            argument.display()
        );
    }
    let mut quoted = OsString::from("\"");
    quoted.push(argument);
    quoted.push("\"");
    Ok(quoted)
}

/// The size of the table of tracked connections; the kernel permits at least as many of them.
///
/// A connection that has ended stays for two minutes, so a test that opens 100 in a second needs 12,000.
const TRACKED_CONNECTIONS: u32 = 32_768;

/// `COMMAND_LINE_SIZE` of User-Mode Linux, minus the options that it adds itself.
const MAX_LENGTH: usize = 4096 - 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Memory;

    fn config(init: &[&str]) -> Config {
        Config {
            kernel: "/boot/linux".into(),
            memory: Memory::DEFAULT,
            cpus: 1,
            init: init.iter().map(Into::into).collect(),
        }
    }

    fn line(config: &Config) -> String {
        let arguments = arguments(config).unwrap();
        arguments.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn one_processor_needs_no_option() {
        assert_eq!(
            &line(&config(&["/bin/lab"])),
            "mem=1024M root=/dev/root rootfstype=hostfs rootflags=/ rw quiet panic=-1 con=null \
             con0=null,fd:1 ssl=null ssl0=fd:0 seccomp=auto nf_conntrack.hashsize=32768 \
             uml_dir=/dev/null/ LAB_ROLE=init init=\"/bin/lab\"",
        );
    }

    #[test]
    fn arguments_of_process_one_may_contain_spaces() {
        let line = line(&Config {
            cpus: 2,
            ..config(&["/a b/lab", "--exact", "x y"])
        });
        assert!(
            line.ends_with("ncpus=2 init=\"/a b/lab\" -- \"--exact\" \"x y\""),
            "{line}"
        );
    }

    #[test]
    fn impossible_command_lines_are_errors() {
        assert!(arguments(&config(&[])).is_err());
        assert!(arguments(&config(&["/a\"b"])).is_err());
        assert!(arguments(&config(&[&"x".repeat(5000)])).is_err());
    }
}
