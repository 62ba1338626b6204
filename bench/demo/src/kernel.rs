//! `./demo kernel`: programs the example manifests into the kernel and connects to each frontend.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use lab::net::{Answer, Cluster, Host};

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

/// Programs `deploy/examples`, prints the status and sends a request to each of [`FRONTENDS`]: from a Pod of
/// the node, from the node itself and from a client outside the cluster.
///
/// Needs a lab kernel: it makes the networks of a cluster.
pub(crate) fn run() -> anyhow::Result<()> {
    let cluster = Cluster::conformance();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples");
    let examples = examples.to_str().context("a path that is no text")?;
    println!("\n$ ipvs-proxier run --once --manifests deploy/examples --node-name node-a");
    proxier(&[
        "run",
        "--once",
        "--manifests",
        examples,
        "--node-name",
        "node-a",
    ])?;
    println!("\n$ ipvs-proxier status");
    proxier(&["status"])?;

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
                bail!("{who} got no reply from {over:?} {frontend}: {answer:?}");
            };
            println!(
                "{who:<18} {over:?} {frontend:<22} reply from {backend}, which saw client {source}"
            );
        }
    }
    Ok(())
}

fn proxier(arguments: &[&str]) -> anyhow::Result<()> {
    let program = crate::proxier()?;
    let status = Command::new(&program).args(arguments).status();
    let status = status.with_context(|| format!("running {}", program.display()))?;
    ensure!(
        status.success(),
        "ipvs-proxier {}: {status}",
        arguments.join(" ")
    );
    Ok(())
}
