//! The command `ipvs-proxier explain`.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use ::nftables::{Match, Relation, RulesClient, Table};
use clap::Args;
use clap::builder::PossibleValuesParser;

use super::dataplane_flags::DataplaneKind;
use super::planned::{Against, PlannedFlags};
use super::{Output, Setup, json, print};
use crate::cluster::model::{Family, Networks, Protocol};
use crate::cluster::store::Touched;
use crate::dataplane::ipvs::filter::{self, FilterConfig, LocalMode, MarkBit, NodeFacts};
use crate::dataplane::ipvs::observed::Observed;
use crate::dataplane::ipvs::{Ipvs, Kernel};
use crate::dataplane::nftables;
use crate::dataplane::{LocalClients, Planned};
use crate::explain::way::kernel::{self, KernelIpvs, RulesState};
use crate::explain::way::passage::{Rules, Servers};
use crate::explain::way::question::{self, From, To};
use crate::explain::way::step::{Explanation, Outcome, Seen, Step};
use crate::explain::way::{Asked, Sight, host};
use crate::host::way::{self as host_way, HostWay, Traffic};
use crate::plan::frontend::Frontend;
use crate::plan::{Capabilities, FrontendKind, Planner, RelayAbilities};
use crate::reconcile::Proxier;
use crate::util::clock;
use watch::Counter;

mod connection;
mod watch;

/// The most connections of a client that are listed or explained.
const MOST_CONNECTIONS: usize = 8;

/// Flags of `explain`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    /// The client: an address, `node` (a process of this node), `outside` (a client outside the cluster), or
    /// `any` (both).
    #[arg(required_unless_present = "connection")]
    from: Option<From>,

    /// The destination: `ADDRESS:PORT`, or `service/NAMESPACE/NAME[:PORT]` with the name or number of a port.
    #[arg(required_unless_present = "connection")]
    to: Option<To>,

    /// Also watch the client's packets for so many seconds, by the kernel's trace, and what the kernel counts. Ends
    /// after 64 packets.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    watch: Option<u64>,

    /// Explain the present connections of the client with this address and port, instead of a new one.
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["from", "to", "watch", "device"])]
    connection: Option<SocketAddr>,

    /// The protocol [default: the Service port's, otherwise tcp].
    #[arg(long, value_name = "tcp|udp|sctp", ignore_case = true)]
    #[arg(value_parser = PossibleValuesParser::new(["tcp", "udp", "sctp"]))]
    protocol: Option<String>,

    /// The device by which the client's packets arrive [default: that of the kernel's route to the client; without
    /// a kernel, one of a Pod or of a link, by the client's address].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    #[command(flatten)]
    planned: PlannedFlags,

    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let planned = &self.planned;
        let mut setup = planned.setup()?;
        self.check(planned.kind(&setup))?;
        let explanations = match (planned.kind(&setup), planned.against) {
            _ if let Some(client) = self.connection => self.connection(&mut setup, client)?,
            (DataplaneKind::Nftables, Against::Kernel) => {
                let mut proxier = planned.on_nftables(&setup)?;
                proxier.plan_all(clock::since_boot())?;
                let served = nftables::served_slots()?.unwrap_or_default();
                self.by_maps(&setup, proxier.planned(), Some(&served))?
            }
            (DataplaneKind::Ipvs, against) => {
                planned.place_addresses(&mut setup)?;
                match against {
                    Against::Kernel => self.by_ipvs(&setup, &mut planned.on_kernel(&setup)?)?,
                    Against::Empty => {
                        self.by_ipvs(&setup, &mut planned.on_empty_kernel(&setup)?)?
                    }
                }
            }
            (kind, _) => self.without_kernel(&mut setup, kind)?,
        };
        let outcomes = explanations.iter().map(|it| it.verdict.outcome);
        let worst = outcomes.max().unwrap_or(Outcome::Unknown);
        print(&match self.output {
            Output::Json => json(&explanations)?,
            Output::Text => {
                let texts: Vec<String> = explanations.iter().map(ToString::to_string).collect();
                texts.join("\n")
            }
        })?;
        Ok(ExitCode::from(worst.exit_code()))
    }

    /// Checks the flags that need a kernel.
    fn check(&self, kind: DataplaneKind) -> anyhow::Result<()> {
        let is_live = self.watch.is_some() || self.connection.is_some();
        anyhow::ensure!(
            !is_live || self.planned.against == Against::Kernel,
            "--watch and --connection need --against=kernel"
        );
        anyhow::ensure!(
            self.watch.is_none() || self.from != Some(From::Any),
            "--watch needs one client: an address, `node` or `outside` instead of `any`"
        );
        anyhow::ensure!(
            self.watch.is_none() || kind != DataplaneKind::Userspace,
            "--watch needs --dataplane=ipvs or nftables; a relay's connections are sockets of its process"
        );
        Ok(())
    }

    /// Explains with maps, or with a relay, by the plan alone.
    fn without_kernel(
        &self,
        setup: &mut Setup,
        kind: DataplaneKind,
    ) -> anyhow::Result<Vec<Explanation>> {
        let is_relay = kind == DataplaneKind::Userspace;
        setup.plan.has_localhost_node_ports = is_relay;
        let mut proxier = self.planned.on_empty_kernel(setup)?;
        proxier.changes(clock::since_boot())?;
        // The plan for IPVS may differ.
        let mut capabilities = Capabilities {
            has_full_affinity: true,
            ignores_limits: !is_relay,
            ..Capabilities::default()
        };
        if is_relay {
            capabilities.unsupported.insert(Protocol::Sctp);
            capabilities.relay = Some(RelayAbilities::default());
        }
        let (snapshot, machine) = (proxier.snapshot(), proxier.machine());
        let mut planner = Planner::new(setup.plan.clone());
        planner.update(snapshot, machine, &capabilities, Touched::All);
        let planned = Planned {
            snapshot,
            machine,
            planner: &planner,
        };
        match is_relay {
            true => self.by_relay(setup, planned),
            false => self.by_maps(setup, planned, None),
        }
    }

    /// Explains with the relay.
    fn by_relay(&self, setup: &Setup, planned: Planned<'_>) -> anyhow::Result<Vec<Explanation>> {
        let networks = match &setup.settings.local_mode {
            LocalMode::ClusterCidr(networks) => networks.as_slice(),
            // A relay does not see the device of a client.
            _ => &[],
        };
        let of_family = |family| Networks::new(family, networks.iter().copied());
        let networks = [Family::V4, Family::V6].map(of_family).into_iter();
        let networks = networks.filter(|networks| !networks.is_empty());
        let clients = networks.map(|networks| Match::Source(Relation::Is, networks));
        let inside: Vec<Match> = clients.chain([Match::SourceIsLocal]).collect();
        self.explain(&Sight {
            planned,
            rules: Rules::Relay(planned.desired(), &inside),
            seen: Seen::Plan,
            services: &|address| planned.desired().addresses.contains_key(&address),
            inside: &inside,
            device: &|client| self.device(client),
            more: &|_| Ok(Vec::new()),
        })
    }

    /// Explains with the rules of the dataplane nftables. `served` has the frontends of the kernel's table.
    fn by_maps(
        &self,
        setup: &Setup,
        planned: Planned<'_>,
        served: Option<&nftables::Served>,
    ) -> anyhow::Result<Vec<Explanation>> {
        let packets = self.planned.packets(setup)?;
        let table = nftables::table(planned.desired(), &packets, planned.snapshot.node());
        let node = NodeFacts::of(planned.snapshot.node());
        let of_kernel = |asked: &Asked| -> anyhow::Result<Vec<Step>> {
            let Some(served) = served else {
                return Ok(Vec::new());
            };
            let mut steps = Vec::new();
            if planned.desired().frontends.contains_key(&asked.frontend) {
                let found = served.get(&asked.frontend).map(|endpoints| {
                    let serving = endpoints
                        .iter()
                        .filter(|(_, it)| it.slots + it.outside_slots > 0);
                    serving.map(|(address, _)| *address).collect()
                });
                let wanted = nftables::endpoints(&table, &asked.frontend);
                steps.push(kernel::maps(asked, found.as_ref(), &wanted));
            }
            steps.extend(self.of_host(asked, planned, &packets, false)?);
            if let Some(seconds) = idle_flow(asked.frontend.protocol) {
                steps.push(kernel::idle(
                    asked,
                    seconds,
                    "the kernel's connection tracking",
                ));
            }
            steps.extend(self.watched(asked, Counter::Maps(asked.frontend))?);
            Ok(steps)
        };
        let sight = Sight {
            planned,
            rules: Rules::Maps(&table),
            seen: Seen::Plan,
            // Service addresses are translated before the kernel routes them.
            services: &|_| false,
            inside: &LocalClients::on(&packets, &node).inside(),
            device: &|client| self.device(client),
            more: &of_kernel,
        };
        self.explain(&sight)
    }

    /// Explains with IPVS and the rules beside it.
    fn by_ipvs<K: Kernel>(
        &self,
        setup: &Setup,
        proxier: &mut Proxier<Ipvs<K>>,
    ) -> anyhow::Result<Vec<Explanation>> {
        let packets = self.planned.packets(setup)?;
        proxier.preview(clock::since_boot())?;
        let (planned, wanted) = (proxier.planned(), proxier.wanted());
        let observed = proxier.observed();
        let has_kernel = self.planned.against == Against::Kernel;
        let table = proxier.filter().map(|filter| filter.table(wanted));
        let rules = match &table {
            Some(table) if has_kernel => rules_state(table, observed)?,
            _ => RulesState::AsPlanned,
        };
        let has_rules = matches!(rules, RulesState::AsPlanned | RulesState::Other);
        let table = table.filter(|_| has_rules);
        let kernel = KernelIpvs {
            wanted,
            observed,
            drains: proxier.ledger().drains(),
            rules,
            now: clock::since_boot(),
        };
        let of_kernel = |asked: &Asked| -> anyhow::Result<Vec<Step>> {
            if !has_kernel {
                return Ok(Vec::new());
            }
            let mut steps = kernel.steps(asked);
            steps.extend(self.of_host(asked, planned, &packets, true)?);
            if !asked.passed.endpoints.is_empty() {
                let timeouts = ipvs_netlink::Client::open()?.timeouts()?;
                let timeout = match asked.frontend.protocol {
                    Protocol::Tcp => Some((timeouts.tcp_secs, "--ipvs-tcp-timeout")),
                    Protocol::Udp => Some((timeouts.udp_secs, "--ipvs-udp-timeout")),
                    Protocol::Sctp => None,
                };
                steps.extend(timeout.map(|(seconds, flag)| {
                    let because = format!("IPVS' timeout, which {flag} sets");
                    kernel::idle(asked, seconds.into(), &because)
                }));
            }
            let counter = Counter::VirtualServer(kernel.key(asked));
            steps.extend(self.watched(asked, counter)?);
            Ok(steps)
        };
        let node = NodeFacts::of(planned.snapshot.node());
        let sight = Sight {
            planned,
            rules: Rules::Ipvs(
                table.as_ref(),
                match has_kernel {
                    true => Servers::Observed(observed),
                    false => Servers::Planned(wanted),
                },
            ),
            seen: match has_kernel {
                true => Seen::Kernel,
                false => Seen::Plan,
            },
            services: &|address| match has_kernel {
                true => observed.has_address(address),
                false => planned.desired().addresses.contains_key(&address),
            },
            inside: &LocalClients::on(&packets, &node).inside(),
            device: &|client| self.device(client),
            more: &of_kernel,
        };
        self.explain(&sight)
    }

    /// Returns the steps about the host, of packets that reach endpoints.
    fn of_host(
        &self,
        asked: &Asked,
        planned: Planned<'_>,
        packets: &FilterConfig,
        has_ipvs: bool,
    ) -> anyhow::Result<Vec<Step>> {
        let own = &planned.machine.addresses;
        let endpoints = asked.passed.endpoints.iter().map(|it| it.address);
        let endpoints: Vec<_> = endpoints.filter(|it| !own.contains(&it.ip())).collect();
        // The host's routes and rules depend on the client's address.
        let is_unknown = matches!(self.from, Some(From::Outside | From::Any));
        if endpoints.is_empty() || is_unknown {
            return Ok(Vec::new());
        }
        let plan = planned.desired().frontends.get(&asked.frontend);
        let kind = plan.map(|plan| plan.profile.kind);
        let way = HostWay::read(&Traffic {
            is_external: matches!(
                kind,
                Some(FrontendKind::LoadBalancer | FrontendKind::ExternalIp)
            ),
            is_hidden: packets.hides_arp,
            is_node_port: kind == Some(FrontendKind::NodePort),
            protocol: asked.frontend.protocol,
            client: asked.packet.source,
            device: asked.packet.input.to_string(),
            frontend: asked.frontend.socket(),
            endpoints,
            has_ipvs,
            input_mark: packets.input_accept_bit.map_or(0, MarkBit::mark),
            forward_mark: packets.forward_accept_bit.map_or(0, MarkBit::mark),
            // The shield leaves node ports out. Maps translate before other programs do.
            is_shielded: !has_ipvs || kind != Some(FrontendKind::NodePort),
        })?;
        Ok(host::steps(asked, &way, &planned.desired().local_endpoints))
    }

    /// Returns the device by which packets from `client` arrive, if it is known.
    fn device(&self, client: IpAddr) -> Option<String> {
        let routed = || match self.planned.against {
            Against::Kernel => host_way::device_to(client),
            Against::Empty => None,
        };
        self.device.clone().or_else(routed)
    }

    fn explain(&self, sight: &Sight<'_>) -> anyhow::Result<Vec<Explanation>> {
        let froms = match self.from {
            Some(From::Any) => vec![From::Node, From::Outside],
            one => Vec::from_iter(one),
        };
        let explain = |from| sight.explain(from, self.frontend(sight, from)?);
        froms.into_iter().map(explain).collect()
    }

    /// Returns the protocol of `--protocol`.
    fn named_protocol(&self) -> Option<Protocol> {
        let name = self.protocol.as_ref()?;
        let mut all = Protocol::ALL.into_iter();
        all.find(|it| it.to_string().eq_ignore_ascii_case(name))
    }

    /// Returns the frontend in question.
    fn frontend(&self, sight: &Sight<'_>, from: From) -> anyhow::Result<Frontend> {
        let protocol = self.named_protocol();
        let to = self.to.as_ref();
        match to.ok_or_else(|| anyhow::anyhow!("TO is missing"))? {
            To::Socket(to) => Ok(Frontend {
                address: to.ip(),
                protocol: protocol.unwrap_or(Protocol::Tcp),
                port: to.port(),
            }),
            To::Service(name, port) => {
                let service = (name, port.as_deref());
                let client = (from, sight.is_outside(from));
                question::frontend_of(sight.planned.desired(), service, protocol, client)
                    .map_err(anyhow::Error::msg)
            }
        }
    }
}

/// Compares the kernel's packet rules beside IPVS with those of the plan.
fn rules_state(table: &Table, observed: &Observed) -> anyhow::Result<RulesState> {
    let mut client = RulesClient::open(filter::TABLE)?;
    let has_foreign_carrier = observed.carrier.is_some_and(|carrier| !carrier.is_ours);
    Ok(match client.exists()? {
        false if has_foreign_carrier => RulesState::OfPredecessor,
        false => RulesState::Missing,
        true => match client.difference(table)? {
            Some(commands) if commands.is_empty() => RulesState::AsPlanned,
            _ => RulesState::Other,
        },
    })
}

/// Returns the seconds after which connection tracking forgets an idle flow.
fn idle_flow(protocol: Protocol) -> Option<u64> {
    let name = match protocol {
        Protocol::Tcp => "nf_conntrack_tcp_timeout_established",
        Protocol::Udp => "nf_conntrack_udp_timeout_stream",
        Protocol::Sctp => "nf_conntrack_sctp_timeout_established",
    };
    host_way::setting(&format!("net/netfilter/{name}"))
}
