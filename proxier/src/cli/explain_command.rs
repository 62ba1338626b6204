//! The command `ipvs-proxier explain`.

use std::net::IpAddr;
use std::process::ExitCode;

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::planned::{Against, PlannedFlags};
use super::{Output, Setup, json, print};
use crate::cluster::model::Protocol;
use crate::cluster::store::Touched;
use crate::dataplane::ipvs::Ipvs;
use crate::dataplane::ipvs::Kernel;
use crate::dataplane::ipvs::filter::NodeFacts;
use crate::dataplane::nftables;
use crate::dataplane::{LocalClients, Planned};
use crate::explain::way::Sight;
use crate::explain::way::passage::{Rules, Servers};
use crate::explain::way::question::{self, From, To};
use crate::explain::way::step::{Explanation, Outcome, Seen};
use crate::plan::frontend::Frontend;
use crate::plan::{Capabilities, Planner};
use crate::reconcile::Proxier;
use crate::util::clock;

/// Flags of `explain`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    /// The client: an address, `node` (a process of this node), `outside` (a client outside the cluster), or
    /// `any` (both).
    from: From,

    /// The destination: `ADDRESS:PORT`, or `service/NAMESPACE/NAME[:PORT]` with the name or number of a port.
    to: To,

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
        let explanations = match (planned.is_nftables(&setup), planned.against) {
            (true, Against::Kernel) => {
                let mut proxier = planned.on_nftables(&setup)?;
                proxier.changes(clock::since_boot())?;
                let planned = proxier.planned();
                self.by_maps(&setup, planned)?
            }
            (true, Against::Empty) => {
                let mut proxier = planned.on_empty_kernel(&setup)?;
                proxier.changes(clock::since_boot())?;
                // The plan for IPVS may differ.
                let mut planner = Planner::new(setup.plan.clone());
                let capabilities = Capabilities {
                    has_full_affinity: true,
                    ..Capabilities::default()
                };
                let (snapshot, machine) = (proxier.snapshot(), proxier.machine());
                planner.update(snapshot, machine, &capabilities, Touched::All);
                let planned = Planned {
                    snapshot,
                    machine,
                    planner: &planner,
                };
                self.by_maps(&setup, planned)?
            }
            (false, against) => {
                planned.place_addresses(&mut setup)?;
                match against {
                    Against::Kernel => self.by_ipvs(&setup, &mut planned.on_kernel(&setup)?)?,
                    Against::Empty => {
                        self.by_ipvs(&setup, &mut planned.on_empty_kernel(&setup)?)?
                    }
                }
            }
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

    /// Explains with the rules of the dataplane nftables.
    fn by_maps(&self, setup: &Setup, planned: Planned<'_>) -> anyhow::Result<Vec<Explanation>> {
        let packets = self.planned.packets(setup)?;
        let table = nftables::table(planned.desired(), &packets, planned.snapshot.node());
        let node = NodeFacts::of(planned.snapshot.node());
        let sight = Sight {
            planned,
            rules: Rules::Maps(&table),
            seen: Seen::Plan,
            // Service addresses are translated before the kernel routes them.
            services: &|_| false,
            inside: &LocalClients::on(&packets, &node).inside(),
            device: &|client| self.device(client),
            more: &|_| Vec::new(),
        };
        self.explain(&sight)
    }

    /// Explains with IPVS and the rules beside it.
    fn by_ipvs<K: Kernel>(
        &self,
        setup: &Setup,
        proxier: &mut Proxier<Ipvs<K>>,
    ) -> anyhow::Result<Vec<Explanation>> {
        proxier.preview(clock::since_boot())?;
        let planned = proxier.planned();
        let wanted = proxier.wanted();
        let table = proxier.filter().map(|filter| filter.table(wanted));
        let packets = self.planned.packets(setup)?;
        let node = NodeFacts::of(planned.snapshot.node());
        let sight = Sight {
            planned,
            rules: Rules::Ipvs(table.as_ref(), Servers::Planned(wanted)),
            seen: Seen::Plan,
            services: &|address| planned.desired().addresses.contains_key(&address),
            inside: &LocalClients::on(&packets, &node).inside(),
            device: &|client| self.device(client),
            more: &|_| Vec::new(),
        };
        self.explain(&sight)
    }

    fn device(&self, _client: IpAddr) -> Option<String> {
        self.device.clone()
    }

    fn explain(&self, sight: &Sight<'_>) -> anyhow::Result<Vec<Explanation>> {
        let froms = match self.from {
            From::Any => vec![From::Node, From::Outside],
            one => vec![one],
        };
        let explain = |from| Ok(sight.explain(from, self.frontend(sight.planned, from)?));
        froms.into_iter().map(explain).collect()
    }

    /// Returns the frontend in question.
    fn frontend(&self, planned: Planned<'_>, from: From) -> anyhow::Result<Frontend> {
        let named = |name: &String| {
            let mut all = Protocol::ALL.into_iter();
            all.find(|it| it.to_string().eq_ignore_ascii_case(name))
        };
        let protocol = self.protocol.as_ref().and_then(named);
        match &self.to {
            To::Socket(to) => Ok(Frontend {
                address: to.ip(),
                protocol: protocol.unwrap_or(Protocol::Tcp),
                port: to.port(),
            }),
            To::Service(name, port) => {
                let service = (name, port.as_deref());
                question::frontend_of(planned.desired(), service, protocol, from)
                    .map_err(anyhow::Error::msg)
            }
        }
    }
}
