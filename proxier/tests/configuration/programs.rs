//! This program and kube-proxy, run with the same arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A program that reads kube-proxy's configuration.
#[derive(Clone)]
pub(crate) struct Program {
    path: PathBuf,
    /// Words before the arguments.
    command: Option<&'static str>,
}

/// What a program did with a configuration.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    /// It wrote this configuration: the values of the fields, by path.
    Written(BTreeMap<String, Value>),
    /// It exited with an error: the last lines of its output.
    Rejected(String),
}

/// Returns what the two programs did differently with the same configuration.
pub(crate) fn difference(given: &str, theirs: &Outcome, ours: &Outcome) -> Option<String> {
    let (theirs, ours) = match (theirs, ours) {
        (Outcome::Rejected(_), Outcome::Rejected(_)) => return None,
        (Outcome::Written(theirs), Outcome::Written(ours)) => (theirs, ours),
        (Outcome::Written(_), Outcome::Rejected(log)) => {
            return Some(format!("{given}: only kube-proxy accepts it; ours: {log}"));
        }
        (Outcome::Rejected(log), Outcome::Written(_)) => {
            return Some(format!("{given}: only ours accepts it; kube-proxy: {log}"));
        }
    };
    let paths: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    let different = paths
        .into_iter()
        .filter(|path| theirs.get(*path) != ours.get(*path));
    let lines: Vec<String> = different
        .map(|path| {
            format!(
                "{path}: kube-proxy {:?}, ours {:?}",
                theirs.get(path),
                ours.get(path)
            )
        })
        .collect();
    (!lines.is_empty()).then(|| format!("{given}: {}", lines.join("; ")))
}

/// Returns this program.
pub(crate) fn ours() -> Program {
    Program {
        path: env!("CARGO_BIN_EXE_ipvs-proxier").into(),
        command: Some("run"),
    }
}

/// Returns kube-proxy; `None` without its binary.
///
/// # Panics
/// If the binary is missing where every test must run.
pub(crate) fn kube_proxy(test: &str) -> Option<Program> {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS");
    let path = assets.map(|folder| Path::new(&folder).join("kube-proxy"));
    match path.filter(|path| path.is_file()) {
        Some(path) => Some(Program {
            path,
            command: None,
        }),
        None => {
            assert!(
                std::env::var("PEERS_REQUIRED").as_deref() != Ok("1"),
                "KUBEBUILDER_ASSETS names no folder with kube-proxy"
            );
            let why =
                format!("SKIPPED {test}: KUBEBUILDER_ASSETS names no folder with kube-proxy\n");
            // Written to stderr directly, because the test harness captures `eprintln!`.
            std::io::stderr().write_all(why.as_bytes()).unwrap();
            None
        }
    }
}

impl Program {
    pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Output {
        Command::new(&self.path)
            .args(self.command)
            .args(arguments)
            .env_remove("RUST_LOG")
            .output()
            .unwrap()
    }

    /// Runs the program with `--write-config-to` and these flags.
    pub(crate) fn write_config<S: AsRef<str>>(&self, flags: &[S]) -> (Outcome, String) {
        let (text, log) = self.write(flags);
        let outcome = match text {
            Some(text) => Outcome::Written(fields(&text)),
            None => Outcome::Rejected(log.clone()),
        };
        (outcome, log)
    }

    /// Returns the file that `--write-config-to` writes with these flags, unless the program rejects them,
    /// and its log.
    pub(crate) fn write<S: AsRef<str>>(&self, flags: &[S]) -> (Option<String>, String) {
        let folder = TempDir::new().unwrap();
        let written = folder.path().join("written.yaml");
        let mut arguments: Vec<String> =
            flags.iter().map(|flag| flag.as_ref().to_owned()).collect();
        arguments.push(format!("--write-config-to={}", written.display()));
        let output = self.run(&arguments);
        let log = String::from_utf8(output.stderr).unwrap();
        let is_written = output.status.success();
        let text = is_written.then(|| std::fs::read_to_string(written).unwrap());
        (text, log)
    }

    /// Runs the program with a configuration file of this content.
    pub(crate) fn read_config(&self, text: &str, flags: &[&str]) -> (Outcome, String) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("config.yaml");
        std::fs::write(&path, text).unwrap();
        let config = format!("--config={}", path.display());
        let flags: Vec<&str> = [&config]
            .map(String::as_str)
            .into_iter()
            .chain(flags.iter().copied())
            .collect();
        let (outcome, log) = self.write_config(&flags);
        let log = log.replace(&path.display().to_string(), "config.yaml");
        let outcome = match outcome {
            Outcome::Rejected(_) => Outcome::Rejected(log.clone()),
            written => written,
        };
        (outcome, log)
    }
}

/// Returns the values of a YAML document by path; empty sections have none.
pub(crate) fn fields(yaml: &str) -> BTreeMap<String, Value> {
    let value: Value = serde_saphyr::from_str(yaml).unwrap();
    let mut fields = BTreeMap::new();
    flatten("", value, &mut fields);
    fields
}

fn flatten(path: &str, value: Value, fields: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(entries) => {
            for (name, value) in entries {
                flatten(&format!("{path}.{name}"), value, fields);
            }
        }
        // kube-proxy writes whole numbers of its floats without a fraction, as this program does.
        value => _ = fields.insert(path.trim_start_matches('.').to_owned(), value),
    }
}

/// A file of version v1alpha1 with this content.
pub(crate) fn file(content: &str) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{content}\n"
    )
}
