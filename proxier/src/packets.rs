//! The packet rules of this node: the plan's frontends, as [`crate::rules`] wants them.
//!
//! ```text
//! Changed, Desired ─▶ Packets::follow ──▶ Ruleset ─▶ Packets::program ─▶ Dataplane::change_rules
//!         Observed ─▶ Packets::release ─┘                             or Dataplane::replace_rules
//! ```
//!
//! Rules tighten before the frontends that they are for change, and loosen after: what
//! [`Packets::follow`] takes in keeps the guards of what is on its way out until
//! [`Packets::release`] sees that it is gone.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;

use crate::dataplane::{Dataplane, Failure};
use crate::model::{Cidr, Family, Node, Protocol};
use crate::nftables::Table;
use crate::observed::Observed;
use crate::plan::{Changed, Desired};
use crate::retry::Wait;
use crate::rules::{
    self, DetectLocal, Endpoints, Frontend, MasqueradeBit, Place, Ruleset, Surplus,
};
use crate::sync::Input;

/// What the operator chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Masquerade all connections to cluster IPs (`--masquerade-all`).
    pub masquerade_all: bool,
    /// The bit of packet marks that means "masquerade" (`--iptables-masquerade-bit`).
    pub masquerade_bit: MasqueradeBit,
    /// How clients inside the cluster are told from others (`--detect-local-mode`).
    pub local_mode: LocalMode,
    /// Whether service addresses with endpoints answer to ping.
    pub answer_ping: bool,
    /// The ports that the cluster uses as node ports.
    pub node_ports: RangeInclusive<u16>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            masquerade_all: false,
            masquerade_bit: MasqueradeBit::default(),
            local_mode: LocalMode::default(),
            answer_ping: false,
            node_ports: rules::Config::default().node_ports,
        }
    }
}

/// `--detect-local-mode` and what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalMode {
    /// `ClusterCIDR`: by source addresses in these networks (`--cluster-cidr`).
    ClusterCidr(Vec<Cidr>),
    /// `NodeCIDR`: by source addresses in the networks of our Node's pods.
    NodeCidr,
    /// `BridgeInterface`: by this interface (`--pod-bridge-interface`).
    BridgeInterface(Arc<str>),
    /// `InterfaceNamePrefix`: by interfaces whose names begin so (`--pod-interface-name-prefix`).
    InterfaceNamePrefix(Arc<str>),
}

/// kube-proxy's: nobody is recognised where no network is named.
impl Default for LocalMode {
    fn default() -> Self {
        Self::ClusterCidr(Vec::new())
    }
}

impl Config {
    /// What the rules are made by on this node.
    fn on(&self, node: Option<&Node>) -> rules::Config {
        let main_address = |family| node.and_then(|node| node.address(family));
        rules::Config {
            masquerade_all: self.masquerade_all,
            masquerade_bit: self.masquerade_bit,
            detect_local: match &self.local_mode {
                LocalMode::ClusterCidr(networks) => DetectLocal::Networks(networks.clone()),
                LocalMode::NodeCidr => {
                    DetectLocal::Networks(node.map_or_else(Vec::new, |it| it.pod_cidrs.clone()))
                }
                LocalMode::BridgeInterface(name) => DetectLocal::Bridge(name.clone()),
                LocalMode::InterfaceNamePrefix(prefix) => {
                    DetectLocal::InterfacePrefix(prefix.clone())
                }
            },
            answer_ping: self.answer_ping,
            node_ports: self.node_ports.clone(),
            node_addresses: [Family::V4, Family::V6]
                .into_iter()
                .filter_map(main_address)
                .collect(),
        }
    }
}

/// The packet rules, and how far the kernel has them.
#[derive(Debug)]
pub struct Packets {
    choice: Config,
    config: rules::Config,
    ruleset: Ruleset,
    kernel: Kernel,
    /// What the plan does not have any more and the rules still do, since only part of the input is
    /// known.
    held: Changed,
    /// What becomes of rules in the kernel that these do not have: they stay until all input was
    /// known once, since they are perhaps those of what is not known yet.
    surplus: Surplus,
    /// When rules that the kernel refused are set again.
    retry: Wait,
}

/// What the kernel has of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kernel {
    /// All that was taken from the ruleset.
    InStep,
    /// Nothing.
    Nothing,
    /// This, of a ruleset that has more.
    Part(Box<Table>),
    /// Something else, or perhaps nothing.
    Unknown,
}

impl Packets {
    /// The rules of a node without Services.
    pub fn new(choice: Config) -> Self {
        let config = choice.on(None);
        Self {
            choice,
            ruleset: Ruleset::new(config.clone()),
            config,
            kernel: Kernel::Unknown,
            held: Changed::default(),
            surplus: Surplus::Stays,
            retry: Wait::default(),
        }
    }

    /// Takes in what changed in the plan. While only part of the input is known, the rules of
    /// frontends that go or run empty stay, as these do.
    ///
    /// # Cost
    /// Proportional to the change, unless our Node's addresses or networks changed.
    pub fn follow(
        &mut self,
        changed: &Changed,
        desired: &Desired,
        node: Option<&Node>,
        input: Input,
    ) {
        let config = self.choice.on(node);
        let is_remade = config != self.config;
        if input == Input::Whole {
            let held = std::mem::take(&mut self.held);
            self.take_in(&held, desired, input);
            if std::mem::replace(&mut self.surplus, Surplus::Goes) == Surplus::Stays {
                self.distrust();
            }
        }
        if !is_remade || input == Input::Partial {
            self.take_in(changed, desired, input);
        }
        if is_remade {
            let before = std::mem::replace(&mut self.ruleset, Ruleset::new(config.clone()));
            self.config = config;
            self.kernel = Kernel::Unknown;
            take(
                &mut self.ruleset,
                desired,
                desired.virtual_servers.keys(),
                desired.addresses.keys(),
                &desired.local_endpoints,
                desired.health_checks.keys(),
            );
            self.hold_from(&before);
        }
        if changed.virtual_servers.len() > desired.virtual_servers.len() / 2 {
            self.ruleset.pack();
        }
        if !self.is_in_step() {
            // All of it will be set; what changed on the way is only memory.
            self.ruleset.forget_changes();
        }
    }

    /// Takes over what these are in the plan now, as far as `input` tells that.
    fn take_in(&mut self, changed: &Changed, desired: &Desired, input: Input) {
        let (rules, held) = (&mut self.ruleset, &mut self.held);
        let is_partial = input == Input::Partial;
        for key in &changed.virtual_servers {
            let Some(place) = place(key) else {
                continue;
            };
            let mut frontend = desired.rules(key);
            let before = rules.frontend(&place).filter(|_| is_partial);
            if let Some(kept) = before.and_then(|before| kept(before, frontend.as_ref())) {
                held.virtual_servers.insert(*key);
                frontend = Some(kept);
            }
            rules.tighten_frontend(place, frontend);
        }
        for &address in &changed.addresses {
            let is_one = desired.addresses.contains_key(&address);
            if is_partial && !is_one {
                held.addresses.insert(address);
            } else {
                rules.tighten_service_address(address, is_one);
            }
        }
        for &address in &changed.local_endpoints {
            let is_one = desired.local_endpoints.contains(&address);
            if is_partial && !is_one {
                held.local_endpoints.insert(address);
            } else {
                rules.set_local_endpoint(address, is_one);
            }
        }
        for &port in &changed.health_checks {
            let is_one = desired.health_checks.contains_key(&port);
            if is_partial && !is_one {
                held.health_checks.insert(port);
            } else {
                rules.set_health_check_port(port, is_one);
            }
        }
    }

    /// Takes over what is held from rules that were made otherwise.
    fn hold_from(&mut self, before: &Ruleset) {
        for place in self.held.virtual_servers.iter().filter_map(place) {
            let frontend = before.frontend(&place).cloned();
            self.ruleset.set_frontend(place, frontend);
        }
        for &address in &self.held.addresses {
            self.ruleset.set_service_address(address, true);
        }
        for &address in &self.held.local_endpoints {
            self.ruleset.set_local_endpoint(address, true);
        }
        for &port in &self.held.health_checks {
            self.ruleset.set_health_check_port(port, true);
        }
    }

    /// Where the kernel's rules are not known: sees to what is there and neither planned nor held.
    ///
    /// It is guarded until it goes, virtual servers only if they are `doomed`: the process before may
    /// have left it with guards, and with ones that would go sooner. Until all input was known once
    /// nothing goes, and what serves is not refused because its endpoints are not known.
    ///
    /// # Cost
    /// Linear in what is there; nothing where the rules are known.
    pub fn guard_leftovers(
        &mut self,
        known: &Observed,
        desired: &Desired,
        is_doomed: impl Fn(&ipvs::ServiceKey) -> bool,
    ) {
        if self.is_in_step() {
            return;
        }
        if self.surplus == Surplus::Stays {
            self.hold_serving(known);
            return self.ruleset.forget_changes();
        }
        let is_wanted = |key: &&ipvs::ServiceKey| desired.virtual_servers.contains_key(key);
        let left = known.virtual_servers.keys().filter(|key| !is_wanted(key));
        for place in left.filter(|key| is_doomed(key)).filter_map(place) {
            self.ruleset.guard(place);
        }
        let left = known.addresses.keys();
        for &address in left.filter(|address| !desired.addresses.contains_key(address)) {
            self.ruleset.guard_address(address);
        }
        self.ruleset.forget_changes();
    }

    /// Lets frontends serve on that have somebody to do so, though nobody is known.
    fn hold_serving(&mut self, known: &Observed) {
        for (key, server) in &known.virtual_servers {
            let is_serving = server.destinations.iter().any(|it| it.weight > 0);
            let place = place(key).filter(|_| is_serving);
            let frontend = place.and_then(|place| Some((place, self.ruleset.frontend(&place)?)));
            if let Some((place, frontend)) = frontend
                && frontend.endpoints != Endpoints::Some
            {
                let served = Frontend {
                    endpoints: Endpoints::Some,
                    ..frontend.clone()
                };
                self.ruleset.set_frontend(place, Some(served));
                self.held.virtual_servers.insert(*key);
            }
        }
    }

    /// Takes out the guards whose work is done: those of frontends that are gone, or have somebody to
    /// serve them at last; and of addresses that are not local any more. Says whether there were any,
    /// so that there is something to [program](Packets::program).
    pub fn release(&mut self, known: &Observed) -> bool {
        let may_guard_go = |place: &Place, frontend: Option<&Frontend>| {
            let server = known.virtual_servers.get(&key(place));
            match frontend {
                None => server.is_none(),
                Some(_) => server.is_some_and(|server| !server.destinations.is_empty()),
            }
        };
        let may_address_go = |address: &IpAddr| !known.addresses.contains_key(address);
        let is_any = self.ruleset.release(may_guard_go, may_address_go);
        if !self.is_in_step() {
            self.ruleset.forget_changes();
        }
        is_any
    }

    /// The kernel's rules are perhaps not what was set last.
    pub fn distrust(&mut self) {
        self.kernel = Kernel::Unknown;
    }

    /// The kernel has no rules of ours.
    pub fn lost(&mut self) {
        self.kernel = Kernel::Nothing;
    }

    /// Whether the kernel has no rules of ours.
    pub fn are_lost(&self) -> bool {
        self.kernel == Kernel::Nothing
    }

    /// Sets, of all rules, those that the frontends at these addresses need, so that they need not
    /// wait for the others. Only where the rules [are lost](Packets::are_lost), so that nobody loses
    /// any. Answers whether that was done. [`Packets::program`] sets the others.
    pub fn begin(
        &mut self,
        addresses: &BTreeSet<IpAddr>,
        desired: &Desired,
        dataplane: &mut impl Dataplane,
    ) -> bool {
        let mut first = Ruleset::new(self.config.clone());
        let servers = desired.virtual_servers.keys();
        let is_first = |place: Place| addresses.contains(&place.address);
        let servers = servers.filter(|key| place(key).is_some_and(is_first));
        take(
            &mut first,
            desired,
            servers,
            addresses,
            &desired.local_endpoints,
            [],
        );
        let table = first.table();
        // What fails here fails when all rules are set, too, and is told and tried again there.
        let is_done = dataplane.replace_rules(table, self.surplus).is_ok();
        self.kernel = match is_done {
            true => Kernel::Part(Box::new(table.clone())),
            false => Kernel::Unknown,
        };
        is_done
    }

    /// The kernel has rules with this fingerprint, which are perhaps those that it should have.
    pub fn trust(&mut self, fingerprint: rules::Fingerprint) {
        if self.ruleset.fingerprint() == fingerprint {
            self.agree();
        }
    }

    /// Tells the rules as they should be from others; `None` while the kernel may have more.
    pub fn fingerprint(&self) -> Option<rules::Fingerprint> {
        (self.surplus == Surplus::Goes).then(|| self.ruleset.fingerprint())
    }

    /// The rules as they should be; prints in nft's syntax.
    pub fn table(&self) -> &Table {
        self.ruleset.table()
    }

    /// When rules that the kernel refused are to be set again.
    pub fn next_due(&self) -> Option<Duration> {
        self.retry.due()
    }

    /// Sets what changed, in one transaction, or everything where the kernel's rules are not known;
    /// `None` when there is nothing to set. Answers the number of the state that it led to.
    pub fn program(
        &mut self,
        dataplane: &mut impl Dataplane,
        now: Duration,
    ) -> Option<Result<Option<u32>, Failure>> {
        if self.retry.due().is_some_and(|due| now < due) {
            return None;
        }
        let outcome = match &self.kernel {
            Kernel::InStep => {
                let changes = self.ruleset.take_changes();
                if changes.is_empty() {
                    return None;
                }
                dataplane.change_rules(self.ruleset.table(), &changes, self.surplus)
            }
            Kernel::Part(part) => {
                let table = self.ruleset.table();
                dataplane.change_rules(table, &part.difference(table), self.surplus)
            }
            Kernel::Nothing | Kernel::Unknown => {
                dataplane.replace_rules(self.ruleset.table(), self.surplus)
            }
        };
        if outcome.is_ok() {
            self.agree();
        } else {
            self.kernel = Kernel::Unknown;
            self.retry.failed(now);
        }
        Some(outcome)
    }

    /// The kernel has all rules as they are now.
    fn agree(&mut self) {
        self.ruleset.forget_changes();
        self.kernel = Kernel::InStep;
        self.retry = Wait::default();
    }

    /// Whether the kernel has all rules.
    pub fn is_in_step(&self) -> bool {
        self.kernel == Kernel::InStep
    }
}

/// Takes over what these are in the plan now.
fn take<'a>(
    rules: &mut Ruleset,
    desired: &Desired,
    virtual_servers: impl IntoIterator<Item = &'a ipvs::ServiceKey>,
    addresses: impl IntoIterator<Item = &'a IpAddr>,
    local_endpoints: impl IntoIterator<Item = &'a IpAddr>,
    health_checks: impl IntoIterator<Item = &'a u16>,
) {
    for key in virtual_servers {
        if let Some(place) = place(key) {
            rules.set_frontend(place, desired.rules(key));
        }
    }
    for address in addresses {
        rules.set_service_address(*address, desired.addresses.contains_key(address));
    }
    for address in local_endpoints {
        rules.set_local_endpoint(*address, desired.local_endpoints.contains(address));
    }
    for port in health_checks {
        rules.set_health_check_port(*port, desired.health_checks.contains_key(port));
    }
}

/// The rules of a frontend while only part of the input is known: what stays of those that it had
/// `before`, if anything does. Endpoints that are missing are perhaps only not known; what is known
/// counts.
fn kept(before: &Frontend, now: Option<&Frontend>) -> Option<Frontend> {
    match now {
        None => Some(before.clone()),
        Some(now) if now.endpoints > before.endpoints => Some(Frontend {
            endpoints: before.endpoints,
            inside: now.inside.or(before.inside),
            ..now.clone()
        }),
        Some(_) => None,
    }
}

/// The virtual server that is there.
fn key(place: &Place) -> ipvs::ServiceKey {
    ipvs::ServiceKey::Address {
        protocol: match place.protocol {
            Protocol::Tcp => ipvs::Protocol::Tcp,
            Protocol::Udp => ipvs::Protocol::Udp,
            Protocol::Sctp => ipvs::Protocol::Sctp,
        },
        address: place.address,
        port: place.port,
    }
}

/// Where a virtual server with an address is.
fn place(key: &ipvs::ServiceKey) -> Option<Place> {
    let ipvs::ServiceKey::Address {
        protocol,
        address,
        port,
    } = *key
    else {
        return None;
    };
    let protocol = match protocol {
        ipvs::Protocol::Tcp => Protocol::Tcp,
        ipvs::Protocol::Udp => Protocol::Udp,
        ipvs::Protocol::Sctp => Protocol::Sctp,
        // None that a Service can have.
        _ => return None,
    };
    Some(Place {
        address,
        protocol,
        port,
    })
}
