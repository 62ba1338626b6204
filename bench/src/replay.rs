//! `bench replay`: prints which server the crate picks for each request of a trace.
//!
//! Reads a trace from standard input, one JSON object per line. For each pick it prints a line: the
//! name of the server, or `-` if the connection is refused. The first line describes the virtual
//! server:
//!
//! ```json
//! {"scheduler":"sh","flags":["port","fallback"],"flavour":"total","family":4}
//! ```
//!
//! `flags`, `flavour` and `family` are optional: no flags, `total`, 4. The other lines are events:
//!
//! ```json
//! {"add":"A","address":"10.0.0.1","port":80,"weight":1}
//! {"remove":"A"}
//! {"weight":"A","to":3}
//! {"connections":"A","active":3,"inactive":1}
//! {"overload":"A","on":true}
//! {"pick":{"source":"10.1.2.3","sourcePort":1234,"destination":"192.0.2.9","destinationPort":80,"at":12.5}}
//! ```
//!
//! Times are seconds since the virtual server was created, and never decrease. A pick changes no
//! connection count. A new server has no connections and no overload mark, even if a server with
//! the same address and connections was removed. lblc and lblcr still recognise it by address and
//! port, as in the kernel.
//!
//! Any other line is an error: unknown, duplicate or missing fields, a weight that the kernel
//! rejects, an address of the wrong family, an unknown server. The message has the line number. All
//! picks before the error are printed first.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use schedulers::{Balancer, Family, Flags, Flavour, Options, Registry, Request, ServerId};
use serde::Deserialize;

use crate::replay::object::{Keys, Object, parse};

mod object;

/// Replays standard input to standard output.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    replay(io::stdin().lock(), io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

/// Replays a trace.
///
/// Flushes the output before each wait for input, so that a program can send a line and read the pick.
fn replay(input: impl Read, output: impl Write) -> anyhow::Result<()> {
    let mut input = BufReader::new(input);
    let mut output = io::BufWriter::new(output);
    let replayed = replay_lines(&mut input, &mut output);
    // The picks before an error are valid and must be printed.
    output.flush().context("writing")?;
    replayed
}

fn replay_lines<R: Read>(input: &mut BufReader<R>, output: &mut impl Write) -> anyhow::Result<()> {
    let mut lines = Lines::default();
    let header = lines
        .next(input)?
        .context("line 1: the header is missing")?;
    let mut replay = Replay::new(header).context("line 1")?;
    loop {
        // The next read may block: the caller may wait for the pick before it sends the next line.
        if input.buffer().is_empty() {
            output.flush().context("writing")?;
        }
        let Some(line) = lines.next(input)? else {
            return Ok(());
        };
        let picked = replay.event(line);
        let Some(name) = picked.with_context(|| format!("line {}", lines.number))? else {
            continue;
        };
        writeln!(output, "{name}").context("writing")?;
    }
}

/// The lines of the input with their numbers.
#[derive(Debug, Default)]
struct Lines {
    line: Vec<u8>,
    number: usize,
}

impl Lines {
    fn next(&mut self, input: &mut impl BufRead) -> anyhow::Result<Option<&[u8]>> {
        self.line.clear();
        self.number += 1;
        let read = input.read_until(b'\n', &mut self.line);
        let length = read.with_context(|| format!("line {}", self.number))?;
        Ok((length > 0).then_some(self.line.as_slice()))
    }
}

/// A virtual server and the names of its servers.
#[derive(Debug)]
struct Replay {
    balancer: Balancer,
    family: Family,
    servers: HashMap<String, ServerId>,
    /// The name of each server, by [`ServerId::index`].
    names: Vec<String>,
    /// The removed servers, which may still have connections.
    removed: HashMap<SocketAddr, ServerId>,
    now: Duration,
}

impl Replay {
    fn new(line: &[u8]) -> anyhow::Result<Self> {
        let header: Header = parse(line)?;
        let options = header.options()?;
        let scheduler = Registry::kernel().build(&header.scheduler, &options)?;
        Ok(Self {
            balancer: Balancer::new(scheduler, &options),
            family: options.family,
            servers: HashMap::new(),
            names: Vec::new(),
            removed: HashMap::new(),
            now: Duration::ZERO,
        })
    }

    /// Applies an event; returns the name to print if it is a pick.
    fn event(&mut self, line: &[u8]) -> anyhow::Result<Option<&str>> {
        let keys: Keys = parse(line)?;
        if keys.contains("pick") {
            let Pick { pick: Object(pick) } = parse(line)?;
            return self.pick(&pick).map(Some);
        }
        if keys.contains("add") {
            self.add(parse(line)?)?;
        } else if keys.contains("remove") {
            self.remove(&parse::<Remove>(line)?.remove)?;
        } else if keys.contains("weight") {
            let Weight { weight, to } = parse(line)?;
            self.balancer.set_weight(self.find(&weight)?, to)?;
        } else if keys.contains("connections") {
            let Connections {
                connections,
                active,
                inactive,
            } = parse(line)?;
            let id = self.find(&connections)?;
            self.balancer.set_connections(id, active, inactive)?;
        } else if keys.contains("overload") {
            let Overload { overload, on } = parse(line)?;
            self.balancer.set_overloaded(self.find(&overload)?, on)?;
        } else {
            bail!(
                "unknown event: expected one of add, remove, weight, connections, overload, pick"
            );
        }
        Ok(None)
    }

    fn find(&self, name: &str) -> anyhow::Result<ServerId> {
        let id = self.servers.get(name).copied();
        id.with_context(|| format!("unknown server {name:?}"))
    }

    fn add(&mut self, add: Add) -> anyhow::Result<()> {
        let name = add.add;
        ensure!(
            !name.is_empty() && name != "-" && !name.contains(char::is_control),
            "{name:?} is not allowed as a server's name"
        );
        ensure!(
            !self.servers.contains_key(&name),
            "a server {name:?} exists already"
        );
        self.check_family(add.address)?;
        let address = SocketAddr::new(add.address, add.port);
        if let Some(&id) = self.removed.get(&address) {
            // The balancer reports an error if it forgot the removed server, because it had no
            // connections. There is nothing to reset then.
            let _ = self.balancer.set_connections(id, 0, 0);
        }
        let id = self.balancer.add(address, add.weight)?;
        self.removed.remove(&address);
        if self.names.len() <= id.index() {
            self.names.resize(id.index() + 1, String::new());
        }
        self.names[id.index()].clone_from(&name);
        self.servers.insert(name, id);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> anyhow::Result<()> {
        let id = self.find(name)?;
        if let Some(server) = self.balancer.servers().get(id) {
            let address = SocketAddr::new(server.address(), server.port());
            self.removed.insert(address, id);
        }
        self.balancer.remove(id)?;
        self.servers.remove(name);
        Ok(())
    }

    fn pick(&mut self, client: &Client) -> anyhow::Result<&str> {
        self.check_family(client.source)?;
        self.check_family(client.destination)?;
        let at = Duration::try_from_secs_f64(client.at)
            .with_context(|| format!("time {}", client.at))?;
        ensure!(
            at >= self.now,
            "time {} is before that of an earlier pick, {}",
            client.at,
            self.now.as_secs_f64()
        );
        self.now = at;
        let picked = self.balancer.pick(&Request {
            source: client.source,
            source_port: client.source_port,
            destination: client.destination,
            destination_port: client.destination_port,
            at,
        });
        Ok(picked.map_or("-", |id| &self.names[id.index()]))
    }

    fn check_family(&self, address: IpAddr) -> anyhow::Result<()> {
        let is_of_family = match self.family {
            Family::V4 => address.is_ipv4(),
            Family::V6 => address.is_ipv6(),
        };
        ensure!(
            is_of_family,
            "{address} is not of the virtual server's address family"
        );
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    scheduler: String,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default = "total")]
    flavour: String,
    #[serde(default = "four")]
    family: u8,
}

fn total() -> String {
    "total".to_owned()
}

fn four() -> u8 {
    4
}

impl Header {
    fn options(&self) -> anyhow::Result<Options> {
        let mut flags = Flags::default();
        for name in &self.flags {
            let flag = match name.as_str() {
                "port" => &mut flags.port,
                "fallback" => &mut flags.fallback,
                _ => bail!("unknown flag {name:?}: expected port or fallback"),
            };
            ensure!(!*flag, "flag {name:?} is given twice");
            *flag = true;
        }
        Ok(Options {
            family: match self.family {
                4 => Family::V4,
                6 => Family::V6,
                other => bail!("unknown family {other}: expected 4 or 6"),
            },
            flavour: match self.flavour.as_str() {
                "total" => Flavour::Total,
                "classic" => Flavour::Classic,
                other => bail!("unknown flavour {other:?}: expected total or classic"),
            },
            flags,
            ..Options::default()
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Add {
    add: String,
    address: IpAddr,
    port: u16,
    weight: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    remove: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Weight {
    weight: String,
    to: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Connections {
    connections: String,
    active: u32,
    inactive: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Overload {
    overload: String,
    on: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pick {
    pick: Object<Client>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Client {
    source: IpAddr,
    source_port: u16,
    destination: IpAddr,
    destination_port: u16,
    at: f64,
}
