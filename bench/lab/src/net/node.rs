//! Nodes: hosts that forward, with links to other hosts.

use std::{fs, net::IpAddr, ops::Deref, sync::Arc, thread, time::Duration};

use anyhow::{Context, Result, bail};

use super::{Host, must};
use crate::netlink;

/// A host that can have links to other hosts.
#[derive(Debug)]
pub struct Node {
    host: Arc<Host>,
    /// The addresses on the first link: the next hop of other hosts' routes to the pods.
    addresses: Vec<IpAddr>,
    /// The host at the other end of the first link; `None` for the first node.
    above: Option<Arc<Host>>,
}

/// Returns the calling thread's namespace as a node called `name`, without links.
///
/// The node forwards IPv4 and IPv6. Duplicate address detection is off, so addresses work at once.
///
/// # Panics
///
/// If the process is not root in the namespace. In [`test`](crate::test()) it is root.
#[track_caller]
pub fn node(name: &str) -> Node {
    let host = must(Host::current(name));
    must(trust_addresses(&host));
    must(forward(&host));
    Node {
        host: Arc::new(host),
        addresses: Vec::new(),
        above: None,
    }
}

impl Node {
    /// Creates another node, called `name`, and a link to it.
    ///
    /// `device` is this end of the link and `eth0` the other end. The other node gets a default route
    /// to this one. `ours` and `theirs` are addresses with prefix lengths, separated by spaces.
    ///
    /// # Panics
    ///
    /// If `ip` fails, with its output.
    #[track_caller]
    pub fn link(&mut self, device: &str, ours: &str, name: &str, theirs: &str) -> Self {
        must(self.try_link(device, ours, name, theirs))
    }

    /// Creates a pod, called `name`, with these addresses, separated by spaces.
    ///
    /// A veth pair connects it: `veth-NAME` on this node, `eth0` on the pod. This node and the node
    /// at the other end of its first link get a route to each address. The pod's default route
    /// leads to this node.
    ///
    /// # Panics
    ///
    /// If this node has no link yet, or `ip` fails, with its output.
    #[track_caller]
    pub fn pod(&self, name: &str, addresses: &str) -> Host {
        must(self.try_pod(name, addresses))
    }

    fn try_link(&mut self, device: &str, ours: &str, name: &str, theirs: &str) -> Result<Self> {
        let other = Host::new(name)?;
        trust_addresses(&other)?;

        let mut here = veth(device, &other);
        here.extend(ours.split(' ').map(|it| add_address(it, device)));
        self.host.configure(&here)?;

        let gateways = addresses(ours)?;
        let mut there = vec!["link set eth0 up".to_owned()];
        there.extend(theirs.split(' ').map(|it| add_address(it, "eth0")));
        there.extend(
            gateways
                .iter()
                .map(|gateway| format!("route add default via {gateway} dev eth0")),
        );
        other.configure(&there)?;
        wait_for(&self.host, device)?;
        wait_for(&other, "eth0")?;

        if self.addresses.is_empty() {
            self.addresses = gateways;
        }
        Ok(Self {
            host: Arc::new(other),
            addresses: addresses(theirs)?,
            above: Some(Arc::clone(&self.host)),
        })
    }

    fn try_pod(&self, name: &str, list: &str) -> Result<Host> {
        let pod = Host::new(name)?;
        trust_addresses(&pod)?;
        forward(&self.host)?;
        let device = format!("veth-{name}");

        let mut here = veth(&device, &pod);
        here.push(add_address(&format!("{ROUTER}/64"), &device));
        let mut there = vec!["link set eth0 up".to_owned()];
        let mut above = Vec::new();
        for address in addresses(list)? {
            let node = self.address_like(address)?;
            here.push(format!("route add {address} dev {device} src {node}"));
            there.push(add_address(&address.to_string(), "eth0"));
            there.push(match node {
                // A host answers ARP for each of its addresses on each link, but neighbour
                // discovery of IPv6 only for addresses of the link itself.
                IpAddr::V4(node) => format!("route add default via {node} dev eth0 onlink"),
                IpAddr::V6(_) => format!("route add default via {ROUTER} dev eth0"),
            });
            above.push(format!("route add {address} via {node}"));
        }
        self.host.configure(&here)?;
        pod.configure(&there)?;
        wait_for(&self.host, &device)?;
        wait_for(&pod, "eth0")?;
        if let Some(host) = &self.above {
            host.configure(&above)?;
        }
        Ok(pod)
    }

    /// Returns the address of this node in the family of `address`.
    fn address_like(&self, address: IpAddr) -> Result<IpAddr> {
        let mut ours = self.addresses.iter().copied();
        ours.find(|it| it.is_ipv4() == address.is_ipv4())
            .with_context(|| {
                format!(
                    "{} has no address of the family of {address}; link it first",
                    self.host.name()
                )
            })
    }
}

impl Deref for Node {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

/// Returns the commands for a link between `device` of this host and `eth0` of the other.
fn veth(device: &str, other: &Host) -> Vec<String> {
    let there = other.namespace.path();
    vec![
        format!("link add {device} type veth peer name eth0 netns {there}"),
        format!("link set {device} up"),
    ]
}

/// Waits until `device` passes packets: earlier packets are lost, and a lost SYN costs a second.
fn wait_for(host: &Host, device: &str) -> Result<()> {
    host.run(|| {
        // Looks, not time: a standstill of the machine costs one of them.
        for _ in 0..LINK_LOOKS {
            if netlink::is_running(device)? {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
        bail!("the link is not up after {LINK_LOOKS} looks, a millisecond apart");
    })
    .with_context(|| format!("waiting for {device} on {}", host.name()))
}

fn add_address(address: &str, device: &str) -> String {
    // Only IPv6 detects duplicate addresses, so only IPv6 has this option.
    let nodad = if address.contains(':') { " nodad" } else { "" };
    format!("address add {address} dev {device}{nodad}")
}

/// Returns the addresses in a list, without their prefix lengths.
fn addresses(list: &str) -> Result<Vec<IpAddr>> {
    list.split(' ')
        .map(|item| {
            let (address, _) = item.split_once('/').unwrap_or((item, ""));
            address
                .parse()
                .with_context(|| format!("`{item}` in `{list}` is not an address"))
        })
        .collect()
}

/// Turns off duplicate address detection, so that link-local addresses work at once.
fn trust_addresses(host: &Host) -> Result<()> {
    set(host, "ipv6/conf/all/accept_dad", "0")?;
    set(host, "ipv6/conf/default/accept_dad", "0")
}

fn forward(host: &Host) -> Result<()> {
    set(host, "ipv4/ip_forward", "1")?;
    set(host, "ipv6/conf/all/forwarding", "1")
}

fn set(host: &Host, sysctl: &str, value: &str) -> Result<()> {
    // /proc/sys/net belongs to the namespace of the thread that opens it.
    host.run(|| fs::write(format!("/proc/sys/net/{sysctl}"), value))
        .with_context(|| format!("setting net/{sysctl} on {}", host.name()))
}

/// The address of the node on the link to each pod, for IPv6.
const ROUTER: &str = "fe80::1";
/// The most looks for a link that comes up, which takes milliseconds.
const LINK_LOOKS: u32 = 20_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_addresses_are_parsed() {
        let both = addresses("10.0.0.1/24 fd00::1").unwrap();
        assert_eq!(both[0].to_string(), "10.0.0.1");
        assert_eq!(both[1].to_string(), "fd00::1");
        assert!(addresses("").is_err());
        assert!(addresses("10.0.0.1  10.0.0.2").is_err());
        assert!(addresses("node-a").is_err());
    }
}
