//! Credential plugins: programs that print a token or a certificate (`exec` in a kubeconfig).
//!
//! kube-client waits for a plugin without limit. Here a plugin is ended, with the processes that it started, when its
//! time is over or its result is no longer needed.

use std::io::IsTerminal as _;
use std::path::{MAIN_SEPARATOR, Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::config::{ExecAuthCluster, ExecConfig, ExecInteractiveMode};
use rustix::process::{Pid, Signal, kill_process_group};
use rustls::sign::CertifiedKey;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::credential::{bearer, present};
use super::pem::Pem;
use super::tls;
use crate::util::yaml;

/// The most bytes that are read of each output. A plugin that writes more gets SIGPIPE.
const MAX_OUTPUT: u64 = 1 << 20;

/// How long outputs are read after the plugin has ended: a process that it leaves behind may keep them open.
const REST: Duration = Duration::from_secs(1);

/// How much earlier than it expires a credential is replaced.
const MARGIN: Duration = Duration::from_secs(60);

/// A credential plugin and how to run it.
#[derive(Clone, Debug)]
pub(super) struct Plugin {
    /// The program: a path, or a name to look for in PATH.
    command: PathBuf,
    config: ExecConfig,
    /// The value of KUBERNETES_EXEC_INFO.
    input: String,
    /// Whether the plugin may ask questions on the terminal of this process.
    is_interactive: bool,
}

/// What a plugin printed.
pub(super) struct Printed {
    pub(super) header: Option<HeaderValue>,
    pub(super) identity: Option<Arc<CertifiedKey>>,
    /// When the credential must be replaced.
    pub(super) until: Option<SystemTime>,
}

impl Plugin {
    /// Checks a plugin's configuration. `cluster` is what the plugin is told about the cluster.
    pub(super) fn new(
        config: &ExecConfig,
        folder: &Path,
        cluster: Option<ExecAuthCluster>,
    ) -> Result<Self, String> {
        let name = present(config.command.as_deref()).ok_or("command: the value is missing")?;
        let command = if name.contains(MAIN_SEPARATOR) {
            folder.join(name)
        } else {
            name.into()
        };
        let mode = config.interactive_mode.as_ref();
        let has_terminal = std::io::stdin().is_terminal();
        if mode == Some(&ExecInteractiveMode::Always) && !has_terminal {
            return Err("interactiveMode: Always needs a terminal as standard input".into());
        }
        let is_interactive = mode != Some(&ExecInteractiveMode::Never) && has_terminal;
        let mut spec = json!({"interactive": is_interactive});
        if let Some(cluster) = cluster {
            spec["cluster"] = serde_json::to_value(cluster).map_err(|error| error.to_string())?;
        }
        let input = json!({
            "apiVersion": config.api_version,
            "kind": "ExecCredential",
            "spec": spec,
        });
        Ok(Self {
            command,
            config: config.clone(),
            input: input.to_string(),
            is_interactive,
        })
    }

    /// Runs the plugin for at most `limit`.
    pub(super) async fn run(&self, limit: Duration) -> Result<Printed, String> {
        let result = match timeout(limit, self.output()).await {
            Ok(output) => output.and_then(|output| read(&output)),
            Err(_) => Err(format!("no result in {} s; it was ended", limit.as_secs())),
        };
        result.map_err(|why| format!("the credential plugin {self}: {why}"))
    }

    /// Runs the plugin and returns its standard output. Dropping the future ends the plugin.
    async fn output(&self) -> Result<Vec<u8>, String> {
        let mut command = Command::new(&self.command);
        command
            .args(self.config.args.iter().flatten())
            .envs(
                self.config
                    .env
                    .iter()
                    .flatten()
                    .filter_map(|variable| Some((variable.get("name")?, variable.get("value")?))),
            )
            .env("KUBERNETES_EXEC_INFO", &self.input)
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        if self.is_interactive {
            // In our process group, since only processes of one group may read from a terminal.
            command.stdin(Stdio::inherit()).stderr(Stdio::inherit());
        } else {
            (command.stdin(Stdio::null()).stderr(Stdio::piped())).process_group(0);
        }
        let mut child = command.spawn().map_err(|error| format!("{error}"))?;
        let mut group = Group((!self.is_interactive).then(|| pid(&child)).flatten());
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        tokio::select! {
            _ = async { tokio::join!(collect(stdout, &mut output), collect(stderr, &mut errors)) } => {}
            () = async {
                drop(child.wait().await);
                // What a plugin leaves behind on purpose, such as an agent, may stay.
                group.0 = None;
                sleep(REST).await;
            } => {}
        }
        let status = child.wait().await.map_err(|error| error.to_string())?;
        group.0 = None;
        if !status.success() {
            return Err(failure(status, &errors));
        }
        Ok(output)
    }
}

/// Formats as the program, without its arguments, which may have secrets.
impl std::fmt::Display for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.command.display().fmt(f)
    }
}

/// The process group of a plugin that has not ended; killed when this is dropped.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        // The number cannot belong to other processes: the plugin was not waited for.
        if let Some(group) = self.0 {
            // Fails if all have ended already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()?).ok()?)
}

/// Appends what arrives to `text`, until the end or [`MAX_OUTPUT`].
async fn collect(from: Option<impl AsyncRead + Unpin>, text: &mut Vec<u8>) {
    if let Some(from) = from {
        // What arrived before a failure counts.
        let _ = from.take(MAX_OUTPUT).read_to_end(text).await;
    }
}

/// The standard output is the credential. Standard error is meant for logs.
fn failure(status: ExitStatus, errors: &[u8]) -> String {
    let errors = String::from_utf8_lossy(errors);
    let words: Vec<&str> = errors.split_whitespace().collect();
    match words[..] {
        [] => format!("failed with {status}"),
        _ => format!("failed with {status}: {}", words.join(" ")),
    }
}

/// A printed `ExecCredential`; the versions v1 and v1beta1 are alike.
#[derive(Deserialize)]
struct ExecCredential {
    status: Option<ExecStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecStatus {
    expiration_timestamp: Option<Time>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Reads what a plugin printed: JSON, or YAML as client-go permits.
fn read(output: &[u8]) -> Result<Printed, String> {
    let printed: ExecCredential = yaml::parse_secret("the output", output)?;
    let status = printed.status.ok_or("the output has no status")?;
    let token = present(status.token.as_deref());
    let header = token.map(bearer).transpose();
    let pem = |name: &str, text: Option<&str>| {
        present(text).map(|text| Pem {
            text: text.into(),
            origin: name.to_owned(),
        })
    };
    let certificate = pem(
        "clientCertificateData",
        status.client_certificate_data.as_deref(),
    );
    let key = pem("clientKeyData", status.client_key_data.as_deref());
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some(tls::identity(&certificate, &key)?),
        (None, None) => None,
        _ => {
            return Err(
                "the output has only one of clientCertificateData and clientKeyData".into(),
            );
        }
    };
    if token.is_none() && identity.is_none() {
        return Err("the output has neither a token nor a certificate".into());
    }
    Ok(Printed {
        header: header.map_err(|why| format!("status.token: {why}"))?,
        identity,
        until: status
            .expiration_timestamp
            .map(|time| SystemTime::from(time.0) - MARGIN),
    })
}
