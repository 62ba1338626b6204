//! What the host does to packets of Services on their way, beside our own rules.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::foreign_chains::{ForeignChains, ForeignHook, Headers, Taking};
use super::routes::{Route, Routes};
use super::{Treatment, Treatments};
use crate::cluster::model::{Cidr, Protocol};

/// The most endpoints whose ways are read.
const MOST_ENDPOINTS: usize = 16;

/// The packets of one client to one frontend, as far as the host's rules depend on them.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    pub(crate) protocol: Protocol,
    pub(crate) client: SocketAddr,
    /// The device by which they arrive; empty if a process of this node sends them.
    pub(crate) device: String,
    pub(crate) frontend: SocketAddr,
    /// The endpoints that are no address of this machine.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Whether IPVS serves, so that packets pass the hooks input and output. Otherwise they are forwarded.
    pub(crate) has_ipvs: bool,
    /// Whether the frontend's address is one that clients of the link reach by ARP: a load balancer's or an external one.
    pub(crate) is_external: bool,
    /// Whether packet rules of ours hide it there (`--arp=services`).
    pub(crate) is_hidden: bool,
    /// Whether the frontend is a node port.
    pub(crate) is_node_port: bool,
    /// The mark that our table gives packets at the hook input (`--input-drop=accept`).
    pub(crate) input_mark: u32,
    /// The mark that our table gives packets at the hook forward (`--forward-drop=accept`); 0 beside IPVS.
    pub(crate) forward_mark: u32,
    /// Whether our table binds connections to their destination before NAT chains of other programs.
    pub(crate) is_shielded: bool,
}

impl Traffic {
    /// Returns whether this node, as each node that serves the frontend, answers ARP requests for its address on the
    /// link by which the client's packets arrive.
    fn answers_arp(&self) -> bool {
        let IpAddr::V4(address) = self.frontend.ip() else {
            return false;
        };
        // Maps make no address local.
        if !self.is_external || self.is_hidden || !self.has_ipvs || self.device.is_empty() {
            return false;
        }
        let ignores = |name: &str| setting(&format!("net/ipv4/conf/{name}/arp_ignore"));
        // The effective value is the larger one (`IN_DEV_ARP_IGNORE`).
        ignores("all").max(ignores(&self.device)) == Some(0)
            && link_networks(&self.device).any(|network| network.contains(address.into()))
    }

    /// Returns the range of ports that the kernel gives to connections of processes, if it has the node port.
    ///
    /// IPVS takes the answer to such a connection, a SYN with an acknowledgement, for a new connection to the node port.
    fn clashing_ports(&self) -> Option<String> {
        if !self.is_node_port || !self.has_ipvs || self.protocol != Protocol::Tcp {
            return None;
        }
        let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok();
        let range = read("ip_local_port_range")?;
        let (first, last) = range.trim().split_once(char::is_whitespace)?;
        let bounds: (u16, u16) = (first.parse().ok()?, last.trim().parse().ok()?);
        let reserved = read("ip_local_reserved_ports").unwrap_or_default();
        let is_reserved = reserved.trim().split(',').any(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let bounds = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
            bounds.is_some_and(|(first, last)| (first..=last).contains(&self.frontend.port()))
        });
        let is_in = (bounds.0..=bounds.1).contains(&self.frontend.port()) && !is_reserved;
        is_in.then(|| format!("{}-{}", bounds.0, bounds.1))
    }

    /// Returns the headers of the first packet as it arrives.
    fn arriving(&self) -> Headers {
        Headers {
            protocol: self.protocol,
            source: self.client,
            destination: self.frontend,
            input: self.device.clone(),
            output: String::new(),
            mark: self.input_mark,
            is_answer: false,
            is_for_this_node: true,
        }
    }
}

/// The facts about the way of these packets.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostWay {
    /// The way back to the client, if it is not a process of this node; `None` in the inner one without a route.
    pub(crate) to_client: Option<Option<Route>>,
    /// `rp_filter` of the device by which the packets arrive: 0 off, 1 strict, 2 loose.
    pub(crate) reverse_filter: u64,
    /// The ways to endpoints.
    pub(crate) to_endpoints: BTreeMap<IpAddr, Option<Route>>,
    /// Whether this node answers ARP requests for the frontend's address on the link of the client.
    pub(crate) answers_arp: bool,
    /// The ports of the node's own connections, if the node port is one of them.
    pub(crate) clashing_ports: Option<String>,
    /// The settings without which packets end, with their values: those that have another value than 1.
    pub(crate) wrong_settings: Vec<(&'static str, u64)>,
    /// The chains of other programs that drop packets, or may do so.
    pub(crate) drops: Vec<Drop>,
    /// The NAT chains of other programs that send packets elsewhere, or may do so.
    pub(crate) translations: Vec<Taking>,
}

/// A chain of another program that drops some of the packets.
#[derive(Clone, Debug)]
pub(crate) struct Drop {
    pub(crate) hook: ForeignHook,
    pub(crate) taking: Taking,
    /// Whether the dropped packets are answers of endpoints.
    pub(crate) are_answers: bool,
    /// For how many of the endpoints.
    pub(crate) endpoints: usize,
    /// Whether it drops for all endpoints.
    pub(crate) is_for_all: bool,
}

/// Returns the value of a setting under `/proc/sys`, if the kernel has it.
pub(crate) fn setting(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
    text.trim().parse().ok()
}

/// Returns the IPv4 networks that hosts of the link have, by the routes without a gateway in the table main.
fn link_networks(device: &str) -> impl Iterator<Item = Cidr> {
    // `/proc/net` would show the network namespace of the main thread.
    let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap_or_default();
    let number = |word: Option<&str>| Some(u32::from_str_radix(word?, 16).ok()?.to_ne_bytes());
    let network = |line: &str| {
        let mut words = line.split_whitespace();
        let is_here = words.next()? == device;
        let (network, gateway) = (number(words.next())?, number(words.next())?);
        let mask = u32::from_be_bytes(number(words.nth(4))?);
        let length = u8::try_from(mask.leading_ones()).ok()?;
        let is_link = is_here && gateway == [0; 4] && length > 0;
        let network = Cidr::new(network.into(), length).ok()?;
        is_link.then_some(network)
    };
    let networks: Vec<Cidr> = routes.lines().skip(1).filter_map(network).collect();
    networks.into_iter()
}

/// Returns the name of the device by which packets to `address` leave.
pub(crate) fn device_to(address: IpAddr) -> Option<String> {
    let route = Routes::open().ok()?.to(address).ok()??;
    Some(route.device)
}

impl HostWay {
    /// Reads the facts about the packets.
    ///
    /// # Errors
    /// If the kernel's routes or chains cannot be read.
    pub(crate) fn read(traffic: &Traffic) -> Result<Self, netlink::Error> {
        let is_forwarded = !traffic.device.is_empty();
        let client = traffic.client.ip();
        let mut routes = Routes::open()?;
        let mut way = Self::default();
        if is_forwarded {
            way.to_client = Some(routes.to(client)?);
        }
        for endpoint in traffic.endpoints.iter().take(MOST_ENDPOINTS) {
            let route = routes.to(endpoint.ip())?;
            way.to_endpoints.insert(endpoint.ip(), route);
        }
        let forwarding = match client {
            IpAddr::V4(_) => "net/ipv4/ip_forward",
            IpAddr::V6(_) => "net/ipv6/conf/all/forwarding",
        };
        // The effective value is the larger one (`IN_DEV_RPFILTER`). IPv6 has no such setting.
        if is_forwarded && client.is_ipv4() {
            let of = |name: &str| setting(&format!("net/ipv4/conf/{name}/rp_filter"));
            way.reverse_filter = of("all").max(of(&traffic.device)).unwrap_or(0);
        }
        let needed = [
            (forwarding, is_forwarded),
            ("net/ipv4/vs/conntrack", traffic.has_ipvs),
            ("net/ipv4/vs/expire_nodest_conn", traffic.has_ipvs),
        ];
        for (name, _) in needed.into_iter().filter(|(_, is_needed)| *is_needed) {
            let found = setting(name).filter(|value| *value != 1);
            way.wrong_settings.extend(found.map(|value| (name, value)));
        }
        way.answers_arp = traffic.answers_arp();
        way.clashing_ports = traffic.clashing_ports();
        way.read_drops(traffic)?;
        Ok(way)
    }

    fn read_drops(&mut self, traffic: &Traffic) -> Result<(), netlink::Error> {
        let warn = Treatments {
            forward: Treatment::Warn,
            input: Treatment::Warn,
            mark: 0,
            are_translated: !traffic.has_ipvs,
        };
        let mut chains = ForeignChains::open(warn)?;
        if !traffic.is_shielded {
            self.translations = chains.translating(&traffic.arriving())?;
        }
        for (hook, are_answers, all) in self.passed(traffic) {
            let mut found: Vec<Drop> = Vec::new();
            for headers in &all {
                for taking in chains.dropping(hook, headers)? {
                    match found.iter_mut().find(|it| it.taking == taking) {
                        Some(known) => known.endpoints += 1,
                        None => found.push(Drop {
                            hook,
                            taking,
                            are_answers,
                            endpoints: 1,
                            is_for_all: false,
                        }),
                    }
                }
            }
            for drop in &mut found {
                drop.is_for_all = drop.endpoints == all.len();
            }
            self.drops.append(&mut found);
        }
        Ok(())
    }

    /// Returns the hooks that the packets pass, whether they are answers there, and their headers.
    fn passed(&self, traffic: &Traffic) -> Vec<(ForeignHook, bool, Vec<Headers>)> {
        let is_forwarded = !traffic.device.is_empty();
        let device = |address: IpAddr| {
            let route = self.to_endpoints.get(&address).cloned().flatten();
            route.map_or_else(String::new, |route| route.device)
        };
        let to_client = self.to_client.clone().flatten();
        let to_client = to_client.map_or_else(String::new, |route| route.device);
        let headers = |source, destination, input: &str, output: &str| Headers {
            source,
            destination,
            input: input.to_owned(),
            output: output.to_owned(),
            mark: 0,
            is_for_this_node: false,
            ..traffic.arriving()
        };
        let endpoints = || traffic.endpoints.iter().take(MOST_ENDPOINTS).copied();
        let requests = |input: &str| -> Vec<Headers> {
            let request = |it: SocketAddr| headers(traffic.client, it, input, &device(it.ip()));
            endpoints().map(request).collect()
        };
        let answers: Vec<Headers> = endpoints()
            .map(|it| Headers {
                is_answer: true,
                ..headers(it, traffic.client, &device(it.ip()), &to_client)
            })
            .collect();
        match (is_forwarded, traffic.has_ipvs) {
            (true, true) => vec![
                (ForeignHook::Input, false, vec![traffic.arriving()]),
                (ForeignHook::Output, false, requests("")),
                (ForeignHook::Forward, true, answers),
            ],
            (true, false) => {
                let marked = |all: Vec<Headers>| {
                    let mark = traffic.forward_mark;
                    all.into_iter().map(|it| Headers { mark, ..it }).collect()
                };
                vec![
                    (
                        ForeignHook::Forward,
                        false,
                        marked(requests(&traffic.device)),
                    ),
                    (ForeignHook::Forward, true, marked(answers)),
                ]
            }
            (false, _) => vec![
                (ForeignHook::Output, false, requests("")),
                (ForeignHook::Input, true, answers),
            ],
        }
    }
}
