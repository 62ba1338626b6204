//! The proxies that are measured, as processes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::objects::NODE;
use crate::process::{Cpu, Memory};

/// The standard folders of programs. The environment of the lab may lack those for root.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A proxy to measure: its name in the report, and its command line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Subject {
    pub(crate) name: String,
    /// Program and arguments, with [`PLACES`] in them.
    command: Vec<String>,
    /// The programs behind the name `iptables`.
    iptables: Iptables,
}

/// The texts of a command line that are replaced.
const PLACES: [&str; 3] = ["{kubeconfig}", "{node}", "{folder}"];

/// The backend of the iptables programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Iptables {
    Nft,
    Legacy,
}

/// kube-proxy in one of its modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KubeProxy {
    /// IPVS, with iptables-nft.
    Ipvs,
    /// IPVS, with iptables-legacy.
    IpvsLegacy,
    /// nftables.
    Nftables,
}

impl Subject {
    /// Returns this project's proxy.
    pub(crate) fn ours(program: &Path, dataplane: &str) -> Self {
        Self {
            name: format!("ipvs-proxier {dataplane}").replace(" ipvs", ""),
            command: [
                &*program.to_string_lossy(),
                "run",
                "--kubeconfig={kubeconfig}",
                "--hostname-override={node}",
                "--state-file={folder}/state",
                &format!("--dataplane={dataplane}"),
            ]
            .map(str::to_owned)
            .to_vec(),
            iptables: Iptables::Nft,
        }
    }

    /// Returns the proxy that a command line starts, named after its program.
    pub(crate) fn peer(line: &str) -> anyhow::Result<Self> {
        let command: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let program = command.first().context("--peer: the command is empty")?;
        ensure!(
            line.contains(PLACES[0]),
            "--peer {line:?}: the command must contain {{kubeconfig}}, which is replaced by the path of \
             the file that names the API server"
        );
        let name = Path::new(program).file_name().unwrap_or_default();
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            command,
            iptables: Iptables::Nft,
        })
    }

    /// Returns kube-proxy from the folder `assets`.
    pub(crate) fn kube_proxy(mode: KubeProxy, assets: &Path) -> anyhow::Result<Self> {
        let program = assets.join("kube-proxy");
        ensure!(program.is_file(), "{} is missing", program.display());
        let (flag, name, iptables) = match mode {
            KubeProxy::Ipvs => ("ipvs", "kube-proxy ipvs", Iptables::Nft),
            KubeProxy::IpvsLegacy => ("ipvs", "kube-proxy ipvs, legacy", Iptables::Legacy),
            KubeProxy::Nftables => ("nftables", "kube-proxy nftables", Iptables::Nft),
        };
        Ok(Self {
            name: name.to_owned(),
            command: [
                &*program.to_string_lossy(),
                "--kubeconfig={kubeconfig}",
                "--hostname-override={node}",
                &format!("--proxy-mode={flag}"),
                // The lab kernel has no such limit.
                "--conntrack-max-per-core=0",
            ]
            .map(str::to_owned)
            .to_vec(),
            iptables,
        })
    }

    /// Reads the program once, so that it is in the page cache, as on a node that has just unpacked it.
    pub(crate) fn cache(&self) -> anyhow::Result<()> {
        let program = self.command.first().context("a command without program")?;
        // A name without a path is found by PATH, and stays uncached.
        if Path::new(program).is_absolute() {
            let mut file = File::open(program).with_context(|| format!("opening {program}"))?;
            std::io::copy(&mut file, &mut std::io::sink())?;
        }
        Ok(())
    }

    /// Starts the proxy in the namespace of the calling thread.
    pub(crate) fn start(&self, kubeconfig: &Path, folder: &Path) -> anyhow::Result<Proxy> {
        let fill = |word: &String| {
            let values = [
                kubeconfig.to_string_lossy(),
                NODE.into(),
                folder.to_string_lossy(),
            ];
            let places = PLACES.iter().zip(values);
            places.fold(word.clone(), |word, (place, value)| {
                word.replace(place, &value)
            })
        };
        let words: Vec<String> = self.command.iter().map(fill).collect();
        let [program, arguments @ ..] = words.as_slice() else {
            bail!("the command of {} is empty", self.name);
        };
        let log = folder.join("log");
        let process = Command::new(program)
            .args(arguments)
            // The first `iptables` in PATH decides about the backend, so the links come first.
            .env("PATH", self.path(folder)?)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("running {program}"))?;
        Ok(Proxy { process, log })
    }

    /// Returns the value of PATH, in which `iptables` is the chosen one.
    fn path(&self, folder: &Path) -> anyhow::Result<String> {
        let flavour = match self.iptables {
            Iptables::Nft => "nft",
            Iptables::Legacy => "legacy",
        };
        let links = folder.join("iptables");
        std::fs::create_dir_all(&links)?;
        for family in ["iptables", "ip6tables"] {
            for what in ["", "-save", "-restore"] {
                let program = format!("/usr/sbin/{family}-{flavour}{what}");
                if Path::new(&program).exists() {
                    std::os::unix::fs::symlink(program, links.join(format!("{family}{what}")))?;
                }
            }
        }
        Ok(format!("{}:{PATH}", links.display()))
    }
}

/// A running proxy; killed when dropped.
pub(crate) struct Proxy {
    process: Child,
    log: PathBuf,
}

impl Proxy {
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn cpu(&self) -> anyhow::Result<Cpu> {
        Cpu::of(self.id())
    }

    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        Memory::of(self.id())
    }

    /// Returns an error with the end of its log if the proxy has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.process.try_wait()? {
            None => Ok(()),
            Some(status) => bail!(
                "the proxy ended with {status}; its log ends with\n{}",
                self.log()
            ),
        }
    }

    /// Returns the last lines of its log.
    pub(crate) fn log(&self) -> String {
        /// Lines.
        const MOST: usize = 12;
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(MOST)..].join("\n")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // If the proxy has already exited, `kill` fails and `wait` reaps it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_named_after_its_program() {
        let peer = Subject::peer("/opt/kube-proxy --kubeconfig {kubeconfig}").unwrap();
        assert_eq!(peer.name, "kube-proxy");
        assert!(Subject::peer("kube-proxy").is_err());
        assert!(Subject::peer(" ").is_err());
    }
}
