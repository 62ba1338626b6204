//! `bench demo`: programs the example manifests into a lab kernel and connects to each frontend.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, ensure};
use lab::net::{Answer, Cluster, Host};

use crate::{inside, process};

/// The frontends of `deploy/examples` that the demonstration connects to.
const FRONTENDS: [(&str, Over); 4] = [
    ("10.96.0.80:80", Over::Tcp),
    ("[fd00:10:96::46]:80", Over::Tcp),
    ("10.96.0.53:53", Over::Udp),
    ("172.18.0.2:30080", Over::Tcp),
];

#[derive(Clone, Copy, Debug)]
enum Over {
    Tcp,
    Udp,
}

/// Programs `deploy/examples`, prints the status and sends a request to each of [`FRONTENDS`].
///
/// A Pod of the node, the node itself and a client outside the cluster send a request each.
/// `proxier` is the path of `ipvs-proxier`; the default is this program's directory.
pub(crate) fn run(proxier: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    inside::run("1024M", || demonstrate(proxier))
}

fn demonstrate(proxier: Option<PathBuf>) -> anyhow::Result<()> {
    let proxier = process::proxier(proxier)?;
    let cluster = Cluster::conformance();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples");
    println!("\n$ ipvs-proxier run --once --manifests deploy/examples --node-name node-a");
    let mut command = Command::new(&proxier);
    command
        .args(["run", "--once", "--node-name", "node-a", "--manifests"])
        .arg(&examples);
    let status = command
        .status()
        .with_context(|| format!("running {}", proxier.display()))?;
    ensure!(status.success(), "ipvs-proxier run: {status}");
    println!("\n$ ipvs-proxier status");
    let status = Command::new(&proxier).arg("status").status()?;
    ensure!(status.success(), "ipvs-proxier status: {status}");

    println!();
    let clients: [(&str, &Host); 3] = [
        ("a pod of the node", &cluster.pod3),
        ("the node itself", &cluster.node),
        ("a client outside", &cluster.ext),
    ];
    for (frontend, over) in FRONTENDS {
        for (who, client) in clients {
            let answer = match over {
                Over::Tcp => client.ask_tcp(frontend),
                Over::Udp => client.ask_udp(frontend),
            };
            let Answer::Reply { backend, source } = answer else {
                anyhow::bail!("{who} got no reply from {over:?} {frontend}: {answer:?}");
            };
            println!(
                "{who:<18} {over:?} {frontend:<22} reply from {backend}, which saw client {source}"
            );
        }
    }
    Ok(())
}
