//! `explain --connection`: one client now.

use std::net::SocketAddr;

use ipvs_netlink as ipvs;

use super::super::Setup;
use super::super::dataplane_flags::DataplaneKind;
use super::{Flags, MOST_CONNECTIONS};
use crate::cluster::model::{Family, Protocol};
use crate::dataplane::Planned;
use crate::dataplane::conntrack::{ConntrackClient, Flow};
use crate::dataplane::ipvs::connections::connections;
use crate::dataplane::nftables;
use crate::explain::way::connection::{Held, Standing, none};
use crate::explain::way::step::Explanation;
use crate::util::clock;

impl Flags {
    /// Explains the present connections of `client`.
    pub(super) fn connection(
        &self,
        setup: &mut Setup,
        client: SocketAddr,
    ) -> anyhow::Result<Vec<Explanation>> {
        let planned = &self.planned;
        match planned.kind(setup) {
            DataplaneKind::Ipvs => {
                planned.place_addresses(setup)?;
                let mut proxier = planned.on_kernel(setup)?;
                let now = clock::since_boot();
                proxier.preview(now)?;
                let (wanted, observed) = (proxier.wanted(), proxier.observed());
                let drains = proxier.ledger().drains();
                let standing = |held: &Held, endpoint: SocketAddr| {
                    let inside = wanted.inside(&held.frontend);
                    let keys = [Some(ipvs::ServiceKey::from(held.frontend)), inside];
                    let mut servers = keys
                        .into_iter()
                        .flatten()
                        .filter_map(|key| Some((key, observed.virtual_servers.get(&key)?)));
                    let is_it = |it: &ipvs::DestinationKey| {
                        SocketAddr::new(it.address, it.port) == endpoint
                    };
                    let mut has_server = false;
                    let found = servers.find_map(|(key, server)| {
                        has_server = true;
                        let mut all = server.destinations.iter();
                        Some((key, all.find(|it| is_it(&it.key))?))
                    });
                    match found {
                        None if has_server => Standing::Gone,
                        None => Standing::NoService,
                        Some((key, found)) => match drains.get(&key, &found.key) {
                            Some(drain) => Standing::Drains {
                                seconds: Some(drain.deadline.saturating_sub(now).as_secs()),
                            },
                            None if found.weight == 0 => Standing::Drains { seconds: None },
                            None => Standing::Accepts {
                                weight: found.weight,
                            },
                        },
                    }
                };
                self.of_client(client, proxier.planned(), &standing)
            }
            DataplaneKind::Nftables => {
                let mut proxier = planned.on_nftables(setup)?;
                proxier.plan_all(clock::since_boot())?;
                let served = nftables::served_slots()?.unwrap_or_default();
                let standing = |held: &Held, endpoint: SocketAddr| {
                    let Some(endpoints) = served.get(&held.frontend) else {
                        return Standing::NoService;
                    };
                    let slots = endpoints.get(&endpoint);
                    match slots.map_or(0, |it| it.slots.max(it.outside_slots)) {
                        0 => Standing::Drains { seconds: None },
                        slots => Standing::Accepts {
                            weight: u32::try_from(slots).unwrap_or(u32::MAX),
                        },
                    }
                };
                self.of_client(client, proxier.planned(), &standing)
            }
            DataplaneKind::Userspace => anyhow::bail!(
                "--connection needs --dataplane=ipvs or nftables; a relay's connections are sockets of its process: \
                 ss --tcp --numeric --processes"
            ),
        }
    }

    fn of_client(
        &self,
        client: SocketAddr,
        planned: Planned<'_>,
        standing: &dyn Fn(&Held, SocketAddr) -> Standing,
    ) -> anyhow::Result<Vec<Explanation>> {
        let protocols = match self.named_protocol() {
            Some(protocol) => vec![protocol],
            None => Protocol::ALL.to_vec(),
        };
        let has = |protocol| protocols.contains(&protocol);
        let of_ipvs = connections(MOST_CONNECTIONS, |it| {
            it.client == client && has(it.protocol)
        })?;
        let mut tracked = ConntrackClient::open()?;
        let mut flows: Vec<Flow> = Vec::new();
        for &protocol in &protocols {
            let room = MOST_CONNECTIONS - flows.len();
            let of_protocol = (Family::from(client.ip()), protocol);
            let is_wanted = |flow: &Flow| flow.original.source == client;
            flows.extend(tracked.first_flows(room, of_protocol, is_wanted)?);
        }
        let all = Held::all(client, flows, of_ipvs);
        if all.is_empty() {
            return Ok(vec![none(client, &protocols)]);
        }
        let explain = |held: &Held| {
            let plan = planned.desired().frontends.get(&held.frontend);
            let owner = plan.map(|plan| plan.owner.to_string());
            let standing = match held.endpoint() {
                Some(endpoint) => standing(held, endpoint),
                None => Standing::NoService,
            };
            held.explain(owner.as_deref(), &standing)
        };
        Ok(all.iter().map(explain).collect())
    }
}
